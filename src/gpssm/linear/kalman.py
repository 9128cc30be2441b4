"""Kalman filter, forecasts and simulations of linear models, exact and in NumPy.

    x₀ ~ N(0, I)   x_{t+1} = A x_t + B u_t + b + N(0, Q)   y_t = C x_{t+1} + d + N(0, diag(σ²))

These are the equations of `state_space.py` for models that are fitted and evaluated in seconds, so
that compiling a program would take longer than running it. All functions work on K models at once,
the leading axis of every array of `LinearSSM`, since the time of NumPy on small matrices is
dominated by the overhead of calls. Covariances do not depend on the outputs: once they have
converged, they are computed once for a whole run of rows, and the means of the run follow from a
linear recursion in about 2√T calls (`_scan`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from gpssm.data.series import Series
from gpssm.linear.state_space import LinearSSM

KNOWN = 1e-11  # variance of a state, in scaled units, below which it counts as known exactly


class FilteredStates(NamedTuple):
    """The predicted states of the T rows of a series, and the log densities of the outputs.

    `means[:, t]` and `covariances[:, group[t]]` are the moments of states[t] given y[:t].
    """

    means: Float[np.ndarray, "K T+1 Dx"]
    covariances: Float[np.ndarray, "K G Dx Dx"]
    group: Int[np.ndarray, " T+1"]
    log_density: Float[np.ndarray, "K T"]


class Gains(NamedTuple):
    """Covariances and gains of the filter for each group of rows that share them.

    For row t, `before` is the covariance of states[t], `predicted` that of states[t+1] before y[t]
    is used, and `after` the one given y[t].
    """

    before: Float[np.ndarray, "K G Dx Dx"]
    predicted: Float[np.ndarray, "K G Dx Dx"]
    after: Float[np.ndarray, "K G Dx Dx"]
    gain: Float[np.ndarray, "K G Dx Dy"]
    precision: Float[np.ndarray, "K G Dy Dy"]  # of the innovation; zero where an output is missing
    log_det: Float[np.ndarray, "K G"]  # of that precision, over the outputs that are observed
    runs: list[tuple[int, int, int]]  # first row, end and group, in the order of the rows

    @property
    def group(self) -> Int[np.ndarray, " T"]:
        """The group of each row."""
        return np.repeat(
            [group for *_, group in self.runs], [end - first for first, end, _ in self.runs]
        )


def stack(models: Sequence[LinearSSM]) -> LinearSSM:
    """Stack models along a leading axis; smaller ones are filled up by inert states, A = C = 0, Q =
    I.
    """
    size = max(len(item.offset) for item in models)
    padded = []
    for item in models:
        more = (0, size - len(item.offset))
        process_cov = np.eye(size)
        process_cov[: len(item.offset), : len(item.offset)] = item.process_cov
        padded.append(
            LinearSSM(
                np.pad(item.transition, (more, more)),
                np.pad(item.input_map, (more, (0, 0))),
                np.pad(item.offset, more),
                np.pad(item.C, ((0, 0), more)),
                np.asarray(item.d),
                process_cov,
                np.asarray(item.noise_std),
            )
        )
    return LinearSSM(*(np.stack(leaves) for leaves in zip(*padded, strict=True)))


def filter_states(models: LinearSSM, series: Series) -> FilteredStates:
    """Return the exact filter of each model for a series."""
    gains = find_gains(models, ~np.isnan(series.y))
    means, log_density = _filter_means(models, series, gains)
    first = np.broadcast_to(
        np.eye(means.shape[-1]), (len(means), 1, means.shape[-1], means.shape[-1])
    )
    group = np.concatenate([[0], 1 + gains.group])
    return FilteredStates(means, np.concatenate([first, gains.after], 1), group, log_density)


def forecast(
    models: LinearSSM,
    filtered: FilteredStates,
    u: Float[np.ndarray, "T Du"],
    origins: Int[np.ndarray, " O"],
    horizon: int,
) -> tuple[Float[np.ndarray, "K O H Dy"], Float[np.ndarray, "K O H Dy Dy"]]:
    """Return the mean and covariance of rows o, …, o + H − 1 given the rows before each origin o.

        Cov[y_{o+h}] = Σ_{i≤h} M_i Q M_iᵀ + M_{h+1} P_o M_{h+1}ᵀ + R,   M_i = C Aⁱ

    Covariances are computed once for all origins with the same covariance of the state.
    """
    origins = np.asarray(origins)
    states = filtered.means[:, origins]
    rows = origins[:, None] + np.arange(horizon)
    means = simulate(models, states, np.broadcast_to(u[rows], (len(states), *u[rows].shape)))
    groups, index = np.unique(filtered.group[origins], return_inverse=True)
    start = filtered.covariances[:, groups]
    reach, noise = models.C, np.zeros((len(states), models.C.shape[1], models.C.shape[1]))
    added = noise + models.noise_std[:, :, None] ** 2 * np.eye(models.C.shape[1])
    covariances = []
    for _ in range(horizon):
        noise = noise + reach @ models.process_cov @ reach.mT
        reach = reach @ models.transition
        covariances.append((noise + added)[:, None] + reach[:, None] @ start @ reach.mT[:, None])
    return means, np.stack(covariances, 2)[:, index]


def simulate(
    models: LinearSSM, states: Float[np.ndarray, "K O Dx"], u: Float[np.ndarray, "K O H Du"]
) -> Float[np.ndarray, "K O H Dy"]:
    """Return noise-free outputs from each of these states, with its inputs."""
    transition = models.transition.mT
    drift = u @ models.input_map.mT[:, None] + models.offset[:, None, None]
    path = np.empty((*drift.shape[:3], states.shape[-1]))
    for step in range(drift.shape[2]):
        states = states @ transition + drift[:, :, step]
        path[:, :, step] = states
    return path @ models.C.mT[:, None] + models.d[:, None, None]


def log_density(models: LinearSSM, series: Sequence[Series]) -> Float[np.ndarray, " K"]:
    """Return log p(y), summed over the series."""
    return sum(
        (filter_states(models, item).log_density.sum(1) for item in series), np.zeros(len(models.d))
    )


def find_gains(models: LinearSSM, observed: Bool[np.ndarray, "T Dy"]) -> Gains:
    """Run the Riccati recursion until it converges, and again where other outputs are observed."""
    rows, width = observed.shape
    A, C, Q = models.transition, models.C, models.process_cov
    variance = models.noise_std**2
    count, size = models.offset.shape
    change = np.flatnonzero((observed[1:] != observed[:-1]).any(1)) + 1
    ends = np.concatenate([change, [rows]])[np.searchsorted(change, np.arange(rows), side="right")]
    covariance = np.broadcast_to(np.eye(size), (count, size, size))
    parts: list[tuple[np.ndarray, ...]] = []
    runs = []
    row, former = 0, None
    while row < rows:
        present = np.flatnonzero(observed[row])
        predicted = A @ covariance @ A.mT + Q
        # No covariance has changed noticeably, relative to its largest entry.
        steady = former is not None and bool(
            (np.abs(predicted - former).max((1, 2)) <= 1e-10 * np.abs(predicted).max((1, 2))).all()
        )
        gain, precision = np.zeros((count, size, width)), np.zeros((count, width, width))
        after, log_det = predicted, np.zeros(count)
        if len(present):
            part = C[:, present]
            across = predicted @ part.mT
            spread = part @ across
            diagonal = np.arange(len(present))
            spread[:, diagonal, diagonal] += variance[:, present]
            inverse = 1.0 / spread if len(present) == 1 else np.linalg.inv(spread)
            inverse = 0.5 * (inverse + inverse.mT)
            gain[:, :, present] = across @ inverse
            precision[:, present[:, None], present] = inverse
            log_det = (
                -np.log(spread[:, 0, 0]) if len(present) == 1 else -np.linalg.slogdet(spread)[1]
            )
            after = predicted - gain[:, :, present] @ across.mT
            after = 0.5 * (after + after.mT)
        parts.append((covariance, predicted, after, gain, precision, log_det))
        end = int(ends[row]) if steady else row + 1
        runs.append((row, end, len(parts) - 1))
        former = predicted if end < rows and end != ends[row] else None
        row, covariance = end, after
    before, predicted, after, gain, precision, log_det = (
        np.stack(leaves, 1) for leaves in zip(*parts, strict=True)
    )
    return Gains(before, predicted, after, gain, precision, log_det, runs)


def _filter_means(models: LinearSSM, series: Series, gains: Gains) -> tuple[np.ndarray, np.ndarray]:
    """Return x_{t+1} = (I − K C)(A x_t + B u_t + b) + K (y_t − d), and log densities of y_t."""
    y = np.nan_to_num(series.y) - models.d[:, None]
    drift = series.u @ models.input_map.mT + models.offset[:, None]
    keep = np.eye(models.offset.shape[1]) - gains.gain @ models.C[:, None]
    closed_loop = keep @ models.transition[:, None]
    group = gains.group
    means = np.zeros((len(y), len(series) + 1, models.offset.shape[1]))
    for first, end, number in gains.runs:
        forcing = (
            drift[:, first:end] @ keep[:, number].mT + y[:, first:end] @ gains.gain[:, number].mT
        )
        means[:, first + 1 : end + 1] = _scan(closed_loop[:, number], forcing, means[:, first])
    errors = y - (means[:, :-1] @ models.transition.mT + drift) @ models.C.mT
    errors = np.where(np.isnan(series.y), 0.0, errors)
    distance = np.einsum("kti,ktij,ktj->kt", errors, gains.precision[:, group], errors)
    count = np.sum(~np.isnan(series.y), 1)
    return means, 0.5 * (gains.log_det[:, group] - distance - count * np.log(2.0 * np.pi))


def draw_states(
    model: LinearSSM, series: Series, count: int, rng: np.random.Generator
) -> Float[np.ndarray, "S T+1 Dx"]:
    """Draw the states of one model given all outputs, independently and backwards in time.

        x_t | x_{t+1}, y ~ N(m_t + J_t (x_{t+1} − m⁻_{t+1}), P_t − J_t P⁻_{t+1} J_tᵀ)
        J_t = P_t Aᵀ (P⁻_{t+1})⁻¹

    A state that past outputs determine exactly, such as the lags of a regression, is set to its
    filtered mean.
    """
    models = stack([model])
    gains = find_gains(models, ~np.isnan(series.y))
    means = _filter_means(models, series, gains)[0][0]
    drift = series.u @ model.input_map.T + model.offset
    normal = rng.standard_normal((count, len(means), means.shape[1]))
    paths = np.empty_like(normal)
    paths[:, -1] = means[-1] + normal[:, -1] @ covariance_root(gains.after[0, gains.runs[-1][2]]).T
    for first, end, group in reversed(gains.runs):
        before, predicted = gains.before[0, group], gains.predicted[0, group]
        if np.abs(before).max() <= KNOWN:
            paths[:, first:end] = means[first:end]
            continue
        pull = np.linalg.solve(predicted, model.transition @ before).T
        root = covariance_root(before - pull @ predicted @ pull.T)
        for row in reversed(range(first, end)):
            ahead = model.transition @ means[row] + drift[row]
            paths[:, row] = (
                means[row] + (paths[:, row + 1] - ahead) @ pull.T + normal[:, row] @ root.T
            )
    return paths


def covariance_root(covariance: Float[np.ndarray, "*S Dx Dx"]) -> Float[np.ndarray, "*S Dx Dx"]:
    """Return a root F of a covariance F Fᵀ, which may be singular."""
    values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.mT))
    return vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]


def _scan(
    matrix: Float[np.ndarray, "K Dx Dx"],
    forcing: Float[np.ndarray, "K T Dx"],
    start: Float[np.ndarray, "K Dx"],
) -> Float[np.ndarray, "K T Dx"]:
    """Return x_t = F x_{t−1} + v_t for t = 1..T from x_0, in about √T parallel blocks."""
    count, rows, size = forcing.shape
    if rows == 1:
        return (matrix @ start[:, :, None])[:, :, 0][:, None] + forcing
    length = int(np.ceil(np.sqrt(rows)))
    blocks = -(-rows // length)
    padded = np.zeros((count, blocks * length, size))
    padded[:, :rows] = forcing
    paths = padded.reshape(count, blocks, length, size)
    powers = np.empty((count, length, size, size))
    power = np.broadcast_to(np.eye(size), matrix.shape)
    for step in range(length):
        power = matrix @ power
        powers[:, step] = power
        if step:
            paths[:, :, step] += paths[:, :, step - 1] @ matrix.mT
    starts = np.empty((count, blocks, size))
    for block in range(blocks):
        starts[:, block] = start
        start = (power @ start[:, :, None])[:, :, 0] + paths[:, block, -1]
    paths = paths + (starts @ powers.reshape(count, length * size, size).mT).reshape(paths.shape)
    return paths.reshape(count, blocks * length, size)[:, :rows]
