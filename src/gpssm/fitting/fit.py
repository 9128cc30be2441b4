"""The function `fit`, from data to a posterior."""

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import jax
from jaxtyping import PRNGKeyArray

from gpssm.core.messages import warn
from gpssm.core.runtime import in_double_precision
from gpssm.data.series import as_list
from gpssm.fitting.ladder import climb, is_open
from gpssm.fitting.single import fit_posterior
from gpssm.inference.runner import Runtime
from gpssm.linear.fit import linear_fit
from gpssm.linear.state_space import LinearFit
from gpssm.methods.auto import Auto
from gpssm.methods.ffvd import FFVD
from gpssm.methods.spec import METHOD_NUMBERS, Spec, check_names
from gpssm.model.model import GPSSM
from gpssm.posterior.checks import check_calibration, doubts
from gpssm.posterior.posterior import Posterior
from gpssm.posterior.stack import Stack
from gpssm.starts.build import build

Fitted = TypeVar("Fitted", bound=Posterior | Stack)
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
) -> Posterior | Stack:
    """Fit a Gaussian process state-space model to one or more series.

        posterior = gpssm.fit(train)
        posterior = gpssm.fit(frame, outputs=["level"], inputs=["pump"])
        posterior = gpssm.fit(train, method="ffvd", state_dim=2)

    By default, linear and nonlinear models are compared on held-out training rows. The result is
    their mixture with weights from these rows (`Stack`), or a single posterior if one model has
    nearly all the weight. Any other method returns the posterior of one model.

    The result is determined, bit for bit, by the data, the spec, the seed and the number of chains.
    It does not depend on progress bars, chunk sizes or interruptions.

    Parameters
    ----------
    series
        A `Series`, anything that `Series.of` accepts, or a list of these (several experiments), in
        the user's units. Outputs may also be an array, with inputs `u`, or columns of one or more
        DataFrames, named by `outputs` and `inputs`.
    u
        Inputs, if the outputs are an array.
    outputs, inputs
        Column names of a DataFrame, or names for the columns of arrays.
    spec
        The model, the method and the start. A fitted posterior has its spec in `posterior.spec`.
    runtime
        How to run: chains, seed, progress, checkpoint.
    settings
        Fields of `gpssm.Spec` and `gpssm.Runtime` by name, which override those of `spec` and
        `runtime`: `state_dim=2`, `kernel="matern52"`, `num_chains=2`, `seed=1`. The settings
        num_warmup, num_draws, thin and precision are passed to the method.
    """
    spec, runtime = with_settings(spec or Spec(), runtime or Runtime(), settings)
    experiments = as_list(series, u, outputs, inputs)
    if isinstance(spec.settings, Auto):
        if is_open(spec):
            return warn_of(climb(spec, experiments, runtime))
        spec = spec.replace(method=FFVD())
    return warn_of(fit_posterior(spec, experiments, runtime))


def warn_of(fitted: Fitted) -> Fitted:
    """Warn of each note of a fit and of held-out outputs outside its intervals, and return it."""
    checks = (
        ()
        if fitted.calibration is None
        else check_calibration(fitted.calibration, fitted.dataset.outputs)
    )
    for text in (*fitted.notes, *(check.sentence for check in doubts(list(checks)))):
        warn(text)
    return fitted


def with_settings(
    spec: Spec, runtime: Runtime, settings: Mapping[str, Any]
) -> tuple[Spec, Runtime]:
    """Return the spec and the runtime with some fields replaced, by name."""
    check_names(settings, (*SPEC_FIELDS, *RUNTIME_FIELDS, *METHOD_NUMBERS), "fit")
    chosen = {name: value for name, value in settings.items() if name in RUNTIME_FIELDS}
    wanted = {name: value for name, value in settings.items() if name not in RUNTIME_FIELDS}
    return spec.replace(**wanted), runtime.replace(**chosen)


def parse_settings(
    method: Any, settings: Mapping[str, Any], runtime_fields: Sequence[str] = RUNTIME_FIELDS
) -> tuple[Spec, Runtime]:
    """Return the spec and the runtime from a method and settings by name.

    Parameters
    ----------
    method
        As in `Spec`.
    settings
        Fields of `Spec`, of the method's settings, and of `Runtime`. If a method has a setting of
        the same name as a field of `Spec`, the value applies to `Spec`.
    runtime_fields
        The fields of `Runtime` that may be set.
    """
    spec = Spec(method=method)
    own = [
        field.name
        for field in dataclasses.fields(spec.settings)
        if field.name not in (*SPEC_FIELDS, *METHOD_NUMBERS)
    ]
    check_names(settings, [*own, *SPEC_FIELDS, *METHOD_NUMBERS, *runtime_fields], spec.method_name)
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
    """Build the model that a fit of scaled series would start from, from a linear fit.

    Parameters
    ----------
    series
        One or more scaled series (`gpssm.Scaler`).
    state_dim, num_inducing
        Sizes.
    linear
        The linear fit to start from; by default, it is computed.
    key
        Random key for random parts of the model.
    settings
        Other fields of `gpssm.Spec`: kernel, mean, likelihood, basis, wiring, coupling, rank.
    """
    settings = {"likelihood": "gaussian", **settings}
    spec = Spec(state_dim=state_dim, num_inducing=num_inducing, **settings)
    linear = linear_fit(series, spec) if linear is None else linear
    return build(spec, linear, jax.random.key(0) if key is None else key).model


def _signature() -> inspect.Signature:
    """Return the signature of `fit` with the fields of `Spec` and `Runtime`, for help texts."""
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
