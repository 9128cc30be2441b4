"""One posterior from data: resolve the spec, choose the starts, run the chains."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from time import monotonic

from gpssm.core.files import digest
from gpssm.core.runtime import check_memory, in_double_precision
from gpssm.data.dataset import Dataset
from gpssm.data.series import Series
from gpssm.fitting.choose import StartChoice, choose_starts
from gpssm.fitting.transfer import check_prior, inherited_spec
from gpssm.inference.runner import FIRST_LOOK, Runtime, Sample, run_chains
from gpssm.methods.spec import Spec
from gpssm.posterior.diagnostics import is_precise, with_notes
from gpssm.posterior.draws import Seconds, absorb_common
from gpssm.posterior.posterior import Posterior


@in_double_precision
def fit_posterior(
    spec: Spec,
    experiments: Sequence[Series],
    runtime: Runtime,
    least_rows: Sequence[int] = (),
) -> Posterior:
    """Draw from the posterior of one model.

    Parameters
    ----------
    spec
        The specification of the fit, with a method other than `auto`.
    experiments
        The training series in the user's units.
    runtime
        Chains, seed and other settings of the run.
    least_rows
        Minimum number of rows to which each series is padded, so that fits to parts of series share
        the programs of the fit to all rows.
    """
    began = monotonic()
    if spec.prior is not None:
        experiments = check_prior(spec.prior, spec.prior_strength, experiments)
        spec = inherited_spec(spec)
    dataset = Dataset.of(experiments, delay=spec.delay, windows=spec.windows)
    _check_memory(spec, runtime, dataset)
    windows = dataset.windowed().experiments
    if spec.prior is None and spec.physics is None:
        spec = spec.resolve(windows)
    start = dataset.cut(spec.start) if spec.gives_states else spec.start
    choice = choose_starts(spec.replace(start=start), windows, runtime)
    resolved = choice.spec.replace(delay=dataset.delay or 0)
    resolved = resolved.replace(start=spec.start) if spec.gives_states else resolved
    numbers = runtime.num_chains * spec.settings.num_draws * choice.starts[0].model.state_dim
    dataset = dataclasses.replace(dataset, scaler=choice.scaler)
    dataset, notes = dataset.store_last(runtime.keep_states, numbers)
    assemble = partial(_assemble, choice, dataset, monotonic() - began, runtime.seed)
    precision = spec.settings.precision

    def is_enough(sample: Sample) -> bool:
        return is_precise(assemble(resolved, sample), precision or 0, FIRST_LOOK)

    sample = run_chains(
        spec.settings,
        choice.starts,
        choice.series,
        runtime,
        identity=_identity(resolved),
        kept_from=dataset.windowed().first_states or None,
        separate=choice.separate,
        least_rows=least_rows if spec.windows == 1 else (),
        is_enough=is_enough if precision else None,
    )
    model = choice.starts[0].model
    if not sample.interrupted:
        resolved = resolved.replace(num_draws=sample.info.log_target.shape[1])
    if not spec.settings.learns:
        resolved = resolved.replace(state_dim=model.state_dim, num_inducing=model.basis.size)
    notes = (*choice.starts[0].notes, *notes, *sample.notes)
    posterior = with_notes(assemble(resolved, sample), notes)
    # Not after Ctrl-C, when draws are missing.
    if spec.calibrate and not sample.interrupted:
        posterior = posterior.calibrate(without=choice.held_out)
    return posterior


def _assemble(
    choice: StartChoice, dataset: Dataset, setup: float, seed: int, spec: Spec, sample: Sample
) -> Posterior:
    """Return the posterior of the draws of a run, or of its draws so far."""
    draws = sample.draws._replace(states=dataset.join(sample.draws.states))
    model, draws = absorb_common([start.model for start in choice.starts], draws)
    return Posterior(
        model,
        draws,
        sample.info,
        sample.warmup,
        dataset,
        spec,
        Seconds(setup, sample.compile_seconds, sample.run_seconds),
        seed,
        comparison=choice.comparison,
    )


def was_interrupted(fitted: object) -> bool:
    """Return whether Ctrl-C has stopped the fit of a posterior."""
    return isinstance(fitted, Posterior) and fitted.num_draws < fitted.spec.settings.num_draws


def _identity(spec: Spec) -> dict[str, str]:
    """Return what a checkpoint must match: all settings, with objects represented by a hash."""
    described = spec.describe()
    identity: dict[str, str] = {}
    for name, value in spec.to_dict().items():
        plain = isinstance(value, str | int | float | type(None)) or name == "method"
        content = value.draws if isinstance(value, Posterior) else value
        identity[name] = str(described[name]) if plain else f"{described[name]} {digest(content)}"
    return identity


def _check_memory(spec: Spec, runtime: Runtime, dataset: Dataset) -> None:
    """Raise if the fit needs more memory than the machine has."""
    sizes = {"state_dim": spec.state_dim, "num_inducing": spec.num_inducing}
    states, points = (1 if isinstance(value, str) else int(value) for value in sizes.values())
    draws = runtime.num_chains * spec.settings.num_draws
    stored, _ = dataset.store_last(runtime.keep_states, states * draws)
    rows = sum(len(item) + 1 for item in dataset.experiments) - sum(stored.first_states)
    size = 8 * states * (points**2 + draws * (rows + points))
    sizes["num_chains"] = runtime.num_chains
    check_memory(", ".join(f"{name}={value}" for name, value in sizes.items()), size)
