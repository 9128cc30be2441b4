"""`lstm`: a recurrent network, one layer of long short-term memory, trained on one-step
predictions.

    x_{t+1} = LSTM(x_t, u_t) + noise of the outputs,   x = [y; h; c]

where y_t is the first part of x_{t+1}, is a GPSSM without a Gaussian process: the network is its
mean function, and its weights are zero. Filtering is teacher forcing, since observed outputs
replace predicted ones, and a forecast is a simulation with one-step noise at every step. The
network is therefore forecast, conditioned, scored and saved like other models.

Training minimises the mean squared error of one-step predictions over the first four fifths of all
series by Adam. The network of the epoch that best predicts the last fifth is used, and its error
there determines the noise. Missing outputs are replaced by their predictions.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gpssm.core.linalg import log_normal
from gpssm.core.loops import choose, descend
from gpssm.core.runtime import jit
from gpssm.data.series import Series
from gpssm.inference.settings import MethodSettings, independent_sample, whole
from gpssm.linear.arx import NO_NOISE
from gpssm.model.bases import RandomFourier
from gpssm.model.kernels import make_kernel
from gpssm.model.likelihoods import Gaussian, observed
from gpssm.model.means import LSTM
from gpssm.model.model import GPSSM
from gpssm.model.types import Draw, Info
from gpssm.starts.build import Start

if TYPE_CHECKING:
    from gpssm.methods.spec import Spec


@dataclass(frozen=True)
class LSTMNetwork(MethodSettings):
    """Settings of `lstm`.

    Draws hardly differ and filters of this many states are slow, so that the default is few draws.

    Parameters
    ----------
    units
        H, the width of the layer.
    max_epochs
        Maximum number of steps of Adam, each on all data.
    patience
        Number of epochs without improvement on held-out rows after which training stops.
    learning_rate
        Step size of Adam.
    """

    learns: ClassVar[bool] = False
    supports: ClassVar[Mapping[str, Any]] = {"likelihood": "gaussian", "wiring": None}
    num_warmup: int = 0
    num_draws: int = 5
    learning_rate: float = 0.01
    units: int = whole(32)
    max_epochs: int = whole(2000)
    patience: int = whole(200)

    def prepare(self, series: list[Series], spec: "Spec", key: PRNGKeyArray) -> Start:
        """Return the trained network as a GPSSM, and its states for each series.

        Only Gaussian outputs are supported.
        """
        self.check_support(spec)
        for which in (_early, _late):
            present = np.concatenate([np.isfinite(item.y[which(item)]) for item in series])
            if not present.any(0).all():
                raise ValueError(
                    "`lstm` trains on the first four fifths of each series and validates on the "
                    "rest: every output must be observed in both parts."
                )
        arrays = jax.tree.map(jnp.asarray, series)
        network = start(key, self.units, series[0].output_dim, series[0].input_dim)
        trained = train(network, arrays, self.learning_rate, self.max_epochs, self.patience)
        model = as_model(trained.best, trained.variance, series[0].input_dim)
        return Start(model, [np.asarray(follow(trained.best, item)[0]) for item in arrays])

    def draw_independently(
        self, model: GPSSM, series: list[Series], num_chains: int, seed: int
    ) -> tuple[Draw, Info] | None:
        """Draw the states by teacher forcing; missing outputs are drawn step by step.

        The log target is Σ_t log p(y_t | y_<t) over all series.
        """
        network: Any = model.mean
        arrays = jax.tree.map(jnp.asarray, series)
        std = jnp.exp(model.log_process_std)[None]

        @jax.jit
        def draw(chain: Array, index: Array) -> list[Float[Array, "_ Dx"]]:
            # The keys of the draws of any chain (`inference/chains.py`).
            numbers = (chain, self.num_warmup + (index + 1) * self.thin, 1)
            key = functools.reduce(jax.random.fold_in, numbers, jax.random.key(seed))
            keys = jax.random.split(key, len(arrays))
            noises = [
                std * jax.random.normal(part_key, (len(item), model.state_dim))
                for part_key, item in zip(keys, arrays, strict=True)
            ]
            return [follow(network, *pair)[0] for pair in zip(arrays, noises, strict=True)]

        indices = jnp.indices((num_chains, self.num_draws))
        paths = [np.asarray(path) for path in jax.vmap(jax.vmap(draw))(*indices)]
        log_target = 0.0
        for item in arrays:
            y, present = observed(item.y)
            expected = follow(network, item)[1]
            log_density = log_normal(y, expected, model.process_variance[None, : y.shape[1]])
            log_target += float(jnp.sum(jnp.where(present, log_density, 0.0)))
        weights = np.zeros((num_chains, self.num_draws, model.state_dim, model.basis.size))
        return independent_sample(list(zip(*paths, strict=True)), weights, log_target)


def start(key: PRNGKeyArray, units: int, output_dim: int, input_dim: int) -> LSTM:
    """Return a network with random weights, uniform on ±1/√H.

    The bias of the forget gate is increased by 1, so that the initial memory is long.
    """
    shapes = (
        (4 * units, output_dim + input_dim),
        (4 * units, units),
        (4 * units,),
        (output_dim, units),
        (output_dim,),
    )
    keys, width = jax.random.split(key, len(shapes)), units**-0.5
    drawn = [
        jax.random.uniform(part_key, shape, minval=-width, maxval=width)
        for part_key, shape in zip(keys, shapes, strict=True)
    ]
    drawn[2] = drawn[2].at[units : 2 * units].add(1.0)
    return LSTM(*drawn)


def follow(
    network: LSTM, series: Series, noise: Float[Array, "T Dx"] | None = None
) -> tuple[Float[Array, "T+1 Dx"], Float[Array, "T Dy"]]:
    """Return the states x₀..x_T of a series with known outputs, from x₀ = 0, and the predicted
    outputs.

    Noise is added to the predicted next state, and observed outputs then replace predicted ones.
    """
    width = network.readout.shape[0]
    noise = jnp.zeros((len(series), network.state_dim)) if noise is None else noise

    def advance(
        x: Float[Array, " Dx"], row: tuple[Array, ...]
    ) -> tuple[Array, tuple[Array, Array]]:
        u, y, present, error = row
        expected = network(x[None], u[None])[0]
        output = jnp.where(present, y, expected[:width] + error[:width])
        following = (expected + error).at[:width].set(output)
        return following, (following, expected[:width])

    rows: tuple[Array, ...] = (jnp.asarray(series.u), *observed(jnp.asarray(series.y)), noise)
    _, (path, expected) = jax.lax.scan(advance, jnp.zeros(network.state_dim), rows)
    return jnp.concatenate([jnp.zeros((1, network.state_dim)), path]), expected


class Training(NamedTuple):
    """The state of the training.

    Parameters
    ----------
    network, adam
        The network of this epoch, and the state of the optimiser.
    best, variance
        The network of the best epoch, and its mean squared error on held-out rows.
    epochs, latest
        The number of epochs, and the last epoch with an improvement.
    """

    network: LSTM
    adam: optax.OptState
    best: LSTM
    variance: Float[Array, " Dy"]
    epochs: Int[Array, ""]
    latest: Int[Array, ""]


@jit
def train(
    network: LSTM, series: list[Series], learning_rate: float, max_epochs: int, patience: int
) -> Training:
    """Run Adam on the first part of all series until predictions of the last part have not improved
    for `patience` epochs.
    """
    adam: Any = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(learning_rate))

    def loss(network: LSTM) -> tuple[Float[Array, ""], Float[Array, " Dy"]]:
        trained, held_out = prediction_errors(network, series)
        return jnp.mean(trained), held_out

    def epoch(before: Training) -> Training:
        moved, memory, held_out = descend(adam, loss, before.network, before.adam)
        better = jnp.mean(held_out) < jnp.mean(before.variance)
        best, variance = choose(better, (before.network, held_out), (before.best, before.variance))
        latest = jnp.where(better, before.epochs, before.latest)
        return Training(moved, memory, best, variance, before.epochs + 1, latest)

    zero = jnp.zeros((), int)
    worst = jnp.full(network.offset.shape, jnp.inf)
    begin = Training(network, adam.init(network), network, worst, zero, zero)
    return jax.lax.while_loop(
        lambda state: (state.epochs < max_epochs) & (state.epochs - state.latest <= patience),
        epoch,
        begin,
    )


def prediction_errors(
    network: LSTM, series: list[Series]
) -> tuple[Float[Array, " Dy"], Float[Array, " Dy"]]:
    """Return the mean squared error of each output over training rows and over held-out rows."""
    sums = jnp.zeros((4, network.offset.shape[0]))
    for experiment in series:
        y, present = observed(jnp.asarray(experiment.y))
        squares = jnp.where(present, (y - follow(network, experiment)[1]) ** 2, 0.0)
        parts = [
            part[which(experiment)] for which in (_early, _late) for part in (squares, present)
        ]
        sums += jnp.stack([jnp.sum(part, 0, dtype=squares.dtype) for part in parts])
    return sums[0] / sums[1], sums[2] / sums[3]


def _early(series: Series) -> slice:
    """Return the training rows."""
    return slice(0, round(0.8 * len(series)))


def _late(series: Series) -> slice:
    """Return the held-out rows."""
    return slice(_early(series).stop, len(series))


def as_model(network: LSTM, variance: Float[Array, " Dy"], input_dim: int) -> GPSSM:
    """Return the GPSSM whose mean function is the network, for weights that are zero."""
    width, dim = network.offset.shape[0], network.state_dim + input_dim
    std = (
        jnp.full(network.state_dim, NO_NOISE)
        .at[:width]
        .set(jnp.maximum(jnp.sqrt(variance), NO_NOISE))
    )
    return GPSSM.create(
        make_kernel("se", network.state_dim, dim, jnp.ones(network.state_dim), 1.0),
        RandomFourier(jnp.zeros((1, dim))),
        network,
        Gaussian.build(
            jnp.eye(width, network.state_dim), jnp.zeros(width), jnp.full(width, NO_NOISE)
        ),
        std,
    )
