"""The Gaussian process state-space model: kernel + basis + mean + likelihood + noises.

    x₀ ~ N(0, I)                         f_d(z) | v_d ~ N(m_d(z) + A_d(z)·v_d, B_d(z))
    x_{t+1,d} = f_d(z_t) + N(0, Q_d)     y_t ~ p(y | x_{t+1})

with v_d ~ N(0, I) and z_t = [x_t; u_t].

`states[0]` is x₀; `u[t]` drives `states[t] → states[t+1]`; `states[t+1]` emits `y[t]`.
"""

import dataclasses
import fnmatch
import functools
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, Self, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.model.bases import Basis, Factor
from gpssm.model.kernels import Kernel
from gpssm.model.likelihoods import Likelihood
from gpssm.model.means import Mean
from gpssm.model.priors import Prior, default_prior

Role = Literal["fix", "optimise", "sample"]


class Step(NamedTuple):
    """f_d(z_n) | v_d ~ N(mean_nd + gain_dn · v_d, residual_dn)."""

    mean: Float[Array, "N Dx"]
    gain: Float[Array, "Dx N M"]
    residual: Float[Array, "Dx N"]

    def given(self, weights: Float[Array, "Dx M"]) -> Float[Array, "N Dx"]:
        """Return E[f(z_n) | v] = m + A v."""
        return self.mean + jnp.matmul(self.gain, weights[:, :, None])[:, :, 0].T


# The dotted name of a leaf from its path in the tree.
_name = functools.partial(jax.tree_util.keystr, simple=True, separator=".")

Transition = Callable[[Float[Array, "N Dx"], Float[Array, "N Du"]], Step]
Function = Callable[[Float[Array, "N Dx"], Float[Array, "N Du"]], Float[Array, "N Dx"]]


class Simulation(NamedTuple):
    """A series drawn from the model, with the latent variables that generated it."""

    weights: Float[Array, "Dx M"]
    states: Float[Array, "T+1 Dx"]
    y: Float[Array, "T Dy"]


class GPSSM(eqx.Module):
    """An immutable model: its parts, with a prior and a role for each leaf.

    Leaves have dotted names such as `kernel.log_lengthscale`, `basis.locations`, `likelihood.C`,
    `log_process_std`; priors and roles are set by name or by pattern (`kernel.*`). Build one with
    `GPSSM.create`, or from data with `gpssm.build_model`.

    Parameters
    ----------
    kernel, basis, mean, likelihood
        The parts.
    log_process_std
        log √Q_d.
    priors
        The prior of each leaf by name.
    roles
        The role of each leaf: whether it is fixed, optimised or sampled.
    factor
        The factorisation computed by `prepared`; None otherwise.
    """

    kernel: Kernel
    basis: Basis
    mean: Mean
    likelihood: Likelihood
    log_process_std: Float[Array, " Dx"]
    priors: dict[str, Prior]
    roles: tuple[tuple[str, Role], ...] = eqx.field(static=True)
    factor: Factor = None

    @classmethod
    def create(
        cls,
        kernel: Kernel,
        basis: Basis,
        mean: Mean,
        likelihood: Likelihood,
        process_std: Float[Array, " Dx"],
    ) -> Self:
        """Return a model with the default prior and role for every leaf.

        Parameters
        ----------
        kernel, basis, mean, likelihood
            The parts.
        process_std
            √Q_d.
        """
        # Remove JAX's weak types: an update would change them and trigger a recompilation.
        model = jax.tree.map(
            lambda leaf: jnp.asarray(leaf, leaf.dtype) if eqx.is_inexact_array(leaf) else leaf,
            cls(kernel, basis, mean, likelihood, jnp.log(process_std), {}, ()),
        )
        priors = {name: default_prior(name) for name in model.leaves()}
        # These leaves define a prior or a feature map and are not learned.
        patterns = [
            *("basis.*center", "basis.*half_width", "basis.*frequencies", "basis.*log_scale"),
            *("mean.transition", "mean.input_map", "mean.offset", "mean.exact"),
            *("mean.inner.transition", "mean.inner.input_map", "mean.inner.offset"),
        ]
        fixed = {name for pattern in patterns for name in fnmatch.filter(priors, pattern)}
        roles: tuple[tuple[str, Role], ...] = tuple(
            (name, "fix" if name in fixed else "optimise") for name in priors
        )
        return dataclasses.replace(model, priors=priors, roles=roles)

    @property
    def state_dim(self) -> int:
        """Dx."""
        return self.log_process_std.shape[0]

    @property
    def weights_shape(self) -> tuple[int, int]:
        """(Dx, M), or (1, M) if all dimensions share their weights."""
        return (1 if self.basis.shared else self.state_dim), self.basis.size

    @property
    def process_variance(self) -> Float[Array, " Dx"]:
        """Q_d."""
        return jnp.exp(2 * self.log_process_std)

    def transition(self) -> Transition:
        """Return the function (x, u) → (m, A, B); terms that do not depend on x and u are computed
        once.
        """
        factor = self.factorise()

        def step(x: Float[Array, "N Dx"], u: Float[Array, "N Du"]) -> Step:
            projection = self.basis.project(self.kernel, factor, jnp.concatenate([x, u], -1))
            return Step(self.mean(x, u), *projection)

        return step

    def function(self, weights: Float[Array, "Dx M"]) -> Function:
        """Return the function (x, u) → m(x, u) + A(z)·v for these weights, without computing A."""
        deviation = self.basis.function(self.kernel, self.factorise(), weights)
        return lambda x, u: self.mean(x, u) + deviation(jnp.concatenate([x, u], -1))

    def factorise(self) -> Factor:
        """Return the factorisation of the kernel, computed here unless the model is `prepared`."""
        return self.basis.factorise(self.kernel) if self.factor is None else self.factor

    def prepared(self) -> Self:
        """Return the model with its factorisation stored, valid as long as kernel and basis do not
        change.
        """
        return dataclasses.replace(self, factor=self.factorise())

    def simulate(
        self,
        key: PRNGKeyArray,
        u: Float[Array, "T Du"],
        weights: Float[Array, "Dx M"] | None = None,
        start: Float[Array, " Dx"] | None = None,
    ) -> Simulation:
        """Draw weights and x₀, then x_{t+1} ~ N(m + A v, B + Q) and y_t ~ p(y | x_{t+1}).

        The residual B is drawn independently at each step, as the sparse model defines it, and not
        from one function.

        Parameters
        ----------
        key
            Random key.
        u
            Inputs.
        weights, start
            Weights and x₀; None to draw them.
        """
        weight_key, start_key, path_key, output_key = jax.random.split(key, 4)
        dtype = self.log_process_std.dtype
        transition = self.transition()
        if weights is None:
            weights = jax.random.normal(weight_key, self.weights_shape, dtype)
        if start is None:
            start = jax.random.normal(start_key, (self.state_dim,), dtype)

        def move(
            x: Float[Array, " Dx"], inputs: tuple[Float[Array, " Du"], Float[Array, " Dx"]]
        ) -> tuple[Float[Array, " Dx"], Float[Array, " Dx"]]:
            u, noise = inputs
            step = transition(x[None], u[None])
            std = jnp.sqrt(jnp.maximum(step.residual[:, 0], 0.0) + self.process_variance)
            following = step.given(weights)[0] + std * noise
            return following, following

        noises = jax.random.normal(path_key, (u.shape[0], self.state_dim), dtype)
        _, path = jax.lax.scan(move, start, (u, noises))
        y = self.likelihood.sample(output_key, path)
        return Simulation(weights, jnp.vstack([start[None], path]), y)

    def log_prior(self) -> Float[Array, ""]:
        """Return Σ log p(leaf) over the leaves that are not fixed."""
        zero = jnp.zeros((), self.log_process_std.dtype)
        return sum(
            (self.priors[name].log_prob(leaf) for name, leaf in self.free_leaves().items()), zero
        )

    def free_leaves(self) -> dict[str, Array]:
        """Return the arrays that are not fixed, by name."""
        fixed = self.leaves("fix")
        return {name: leaf for name, leaf in self.leaves().items() if name not in fixed}

    def leaves(self, role: Role | None = None) -> dict[str, Array]:
        """Return the arrays of the parts by name, or those with one role."""
        roles = dict(self.roles)
        flat, _ = jax.tree_util.tree_flatten_with_path(self)
        named = [(_name(path), leaf) for path, leaf in flat if eqx.is_inexact_array(leaf)]
        return {
            name: leaf
            for name, leaf in named
            if not name.startswith(("priors.", "factor"))
            and (role is None or roles.get(name) == role)
        }

    def with_leaves(self, values: Mapping[str, Float[Array, "..."]]) -> Self:
        """Return the model with some leaves replaced by name; their shapes and dtypes stay."""
        current = self.leaves()
        for name, value in values.items():
            if name not in current:
                raise self._unknown(name)
            if jnp.shape(value) != current[name].shape:
                raise ValueError(
                    f"Leaf {name} has shape {current[name].shape}, got {jnp.shape(value)}."
                )
        arrays = {name: jnp.asarray(value, current[name].dtype) for name, value in values.items()}
        flat, tree = jax.tree_util.tree_flatten_with_path(self)
        return jax.tree_util.tree_unflatten(
            tree, [arrays.get(_name(path), leaf) for path, leaf in flat]
        )

    def with_priors(self, priors: Mapping[str, Prior]) -> Self:
        """Return the model with some priors replaced, by name or pattern."""
        chosen = {name: prior for pattern, prior in priors.items() for name in self._match(pattern)}
        return dataclasses.replace(self, priors=self.priors | chosen)

    def with_roles(self, role: Role, *patterns: str) -> Self:
        """Return the model with another role for some leaves, by name or pattern."""
        if role not in get_args(Role):
            raise ValueError(f"A role must be one of {', '.join(get_args(Role))}, got {role!r}.")
        chosen = {name: role for pattern in patterns for name in self._match(pattern)}
        return dataclasses.replace(self, roles=tuple((dict(self.roles) | chosen).items()))

    def _match(self, pattern: str) -> list[str]:
        names = fnmatch.filter(self.leaves(), pattern)
        if not names:
            raise self._unknown(pattern)
        return names

    def _unknown(self, name: str) -> KeyError:
        return KeyError(f"The model has no leaf {name!r}. Its leaves: {', '.join(self.leaves())}.")
