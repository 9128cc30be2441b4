"""From data to a posterior: align, resolve, choose the starts, run the chains."""

import dataclasses
import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jaxtyping import PRNGKeyArray

from gpssm.core.elapsed import ticks
from gpssm.core.files import digest
from gpssm.core.runtime import check_memory, in_double_precision
from gpssm.data.dataset import Dataset
from gpssm.data.series import as_list
from gpssm.fitting.choose import choose_starts
from gpssm.fitting.transfer import check_prior, inherited_spec
from gpssm.inference.runner import Runtime, run_chains
from gpssm.linear.fit import linear_fit
from gpssm.linear.state_space import LinearFit
from gpssm.methods.spec import METHOD_NUMBERS, Spec, check_names
from gpssm.model.model import GPSSM
from gpssm.posterior.draws import Seconds, absorb_common
from gpssm.posterior.posterior import Posterior
from gpssm.starts.build import build

SPEC_FIELDS = tuple(field.name for field in dataclasses.fields(Spec))
RUNTIME_FIELDS = tuple(field.name for field in dataclasses.fields(Runtime))


@in_double_precision
def fit(
    series: Any,
    u: Any = None,
    *,
    outputs: Sequence[str] | str | None = None,
    inputs: Sequence[str] | str | None = None,
    spec: Spec | None = None,
    runtime: Runtime | None = None,
    **settings: Any,
) -> Posterior:
    """Draw from the posterior of a Gaussian process state-space model of one series or several.

        posterior = gpssm.fit(train, state_dim=2)
        posterior = gpssm.fit(frame, outputs=["level"], inputs=["pump"])
        print(posterior.diagnostics())

    The result depends on the data, the spec, the seed and the number of chains alone, bit for bit:
    not on progress or chunks, on the chains run beside, or on having been resumed.

    Parameters
    ----------
    series
        A `Series`, anything `Series.of` takes, or a list of those, in the user's units; or outputs
        as an array, with inputs `u`; or a DataFrame, or several, whose columns `outputs` and
        `inputs` name.
    u
        Inputs, where outputs are an array.
    outputs, inputs
        Columns of a DataFrame, or names for those of arrays.
    spec
        What to fit: model, method and start. `posterior.spec` is that of a fit.
    runtime
        How to run: chains, seed, progress, checkpoint.
    settings
        Fields of `gpssm.Spec` and `gpssm.Runtime` by name, in place of those of `spec` and
        `runtime`: `state_dim=2`, `kernel="matern52"`, `num_chains=2`, `seed=1`; and num_warmup,
        num_draws and thin, which are the method's.
    """
    began = ticks()
    spec, runtime = with_settings(spec or Spec(), runtime or Runtime(), settings)
    experiments = as_list(series, u, outputs, inputs)
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
    setup = ticks() - began
    sample = run_chains(
        spec.settings,
        choice.starts,
        choice.series,
        runtime,
        identity=_identity(resolved),
        kept_from=dataset.windowed().first_states or None,
        separate=choice.separate,
    )
    draws = sample.draws._replace(states=dataset.join(sample.draws.states))
    model, draws = absorb_common([start.model for start in choice.starts], draws)
    posterior = Posterior(
        model,
        draws,
        sample.info,
        sample.warmup,
        dataset,
        resolved,
        Seconds(setup, sample.compile_seconds, sample.run_seconds),
        runtime.seed,
        comparison=choice.comparison,
    ).with_notes((*choice.starts[0].notes, *notes, *sample.notes))
    for note in posterior.notes:
        warnings.warn(note, stacklevel=3)
    # Not after Ctrl-C, when there are fewer draws than were asked for.
    if spec.calibrate and posterior.num_draws == spec.settings.num_draws:
        posterior = posterior.calibrate(without=choice.held_out)
    return posterior


def with_settings(
    spec: Spec, runtime: Runtime, settings: Mapping[str, Any]
) -> tuple[Spec, Runtime]:
    """The spec and the runtime with some of their fields replaced, by name."""
    check_names(settings, (*SPEC_FIELDS, *RUNTIME_FIELDS, *METHOD_NUMBERS), "fit")
    chosen = {name: value for name, value in settings.items() if name in RUNTIME_FIELDS}
    wanted = {name: value for name, value in settings.items() if name not in RUNTIME_FIELDS}
    return spec.replace(**wanted), runtime.replace(**chosen)


def parse_settings(
    method: Any, settings: Mapping[str, Any], runtime_fields: Sequence[str] = RUNTIME_FIELDS
) -> tuple[Spec, Runtime]:
    """Spec and runtime of a method and of settings by name, those of the method itself included.

    Parameters
    ----------
    method
        As in `Spec`.
    settings
        Fields of `Spec`, of the method's own settings, and of `Runtime`. A name that a method
        shares with `Spec` is that of `Spec`.
    runtime_fields
        The fields of `Runtime` that may be set.
    """
    spec = Spec(method=method)
    own = [
        field.name for field in dataclasses.fields(spec.settings) if field.name not in SPEC_FIELDS
    ]
    check_names(settings, [*own, *SPEC_FIELDS, *runtime_fields], spec.method_name)
    numbers = {name: value for name, value in settings.items() if name in own}
    others = {name: value for name, value in settings.items() if name not in own}
    spec = spec.replace(method=dataclasses.replace(spec.settings, **numbers))
    return with_settings(spec, Runtime(progress=False), others)


@in_double_precision
def build_model(
    series: Any,
    state_dim: int = 4,
    num_inducing: int = 50,
    *,
    linear: LinearFit | None = None,
    key: PRNGKeyArray | None = None,
    **settings: Any,
) -> GPSSM:
    """The model that a fit would start from, of scaled series, from a linear fit of its own.

    Parameters
    ----------
    series
        One scaled series or several (`gpssm.Scaler`).
    state_dim, num_inducing
        Sizes.
    linear
        The linear fit to start from, if there is one already.
    key
        For what is drawn at random.
    settings
        Other fields of `gpssm.Spec`: kernel, mean, likelihood, basis, wiring, coupling, rank.
    """
    settings = {"likelihood": "gaussian", **settings}
    spec = Spec(state_dim=state_dim, num_inducing=num_inducing, **settings)
    linear = linear_fit(series, spec) if linear is None else linear
    return build(spec, linear, jax.random.key(0) if key is None else key).model


def _identity(spec: Spec) -> dict[str, str]:
    """What a checkpoint must agree with: every setting, objects by a hash of what they hold."""
    described = spec.describe()
    identity: dict[str, str] = {}
    for name, value in spec.to_dict().items():
        plain = isinstance(value, str | int | float | type(None)) or name == "method"
        content = value.draws if isinstance(value, Posterior) else value
        identity[name] = str(described[name]) if plain else f"{described[name]} {digest(content)}"
    return identity


def _check_memory(spec: Spec, runtime: Runtime, dataset: Dataset) -> None:
    """Refuse at once what no machine could hold."""
    sizes = {"state_dim": spec.state_dim, "num_inducing": spec.num_inducing}
    states, points = (1 if isinstance(value, str) else int(value) for value in sizes.values())
    draws = runtime.num_chains * spec.settings.num_draws
    stored, _ = dataset.store_last(runtime.keep_states, states * draws)
    rows = sum(len(item) + 1 for item in dataset.experiments) - sum(stored.first_states)
    size = 8 * states * (points**2 + draws * (rows + points))
    sizes["num_chains"] = runtime.num_chains
    check_memory(", ".join(f"{name}={value}" for name, value in sizes.items()), size)


def _signature() -> inspect.Signature:
    """That of `fit` with the fields of both values, for help and completion."""
    own = [
        parameter
        for parameter in inspect.signature(fit).parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    fields = [*dataclasses.fields(Spec), *dataclasses.fields(Runtime)]
    defaults = {field.name: field.default for field in fields} | dict.fromkeys(METHOD_NUMBERS)
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Signature(
        [
            *own,
            *(inspect.Parameter(name, keyword, default=value) for name, value in defaults.items()),
        ]
    )


fit.__signature__ = _signature()
