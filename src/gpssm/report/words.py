"""What was fitted, in sentences that need no statistics to read."""

from collections.abc import Iterator

from gpssm.core.text import count, join_names, percent
from gpssm.evaluation.assessment import OutputSummary
from gpssm.evaluation.summary import Summary

SAMPLED = {
    "good": "Chains agree about outputs and forecasts, and there are enough draws.",
    "fair": "Chains agree fairly well about outputs and forecasts: means and intervals are usable, "
    "their last digit is not.",
    "poor": "Chains do not agree about outputs and forecasts: take everything below as "
    "provisional, and run longer chains.",
}
# Where chains have models of their own.
SEPARATE = {
    "good": "Each chain, from a start of its own, has settled, and they agree about outputs and "
    "forecasts.",
    "fair": "Each chain has a model of its own, from its own start. Forecasts are the average "
    "over them, and intervals hold what they do not agree on: usable, but for their last digit.",
    "poor": "Chains from different starts have not converged, or have found different models: take "
    "everything below as provisional.",
}
SLIGHT, MARKED = 0.01, 0.1  # shares of the change of the states that no linear map explains


def in_sentences(summary: Summary) -> list[str]:
    """The model and its data, the sampling, each output, and how nonlinear it is."""
    sampled = SEPARATE if summary.sampling.within else SAMPLED
    return [
        _fitted(summary),
        sampled[summary.sampling.verdict],
        *(_about_output(output, summary) for output in summary.training.outputs),
        *_nonlinear(summary),
    ]


def _fitted(summary: Summary) -> str:
    facts = summary.facts
    kind = "Gaussian process state-space" if facts.kernel else "linear"
    model = f"{kind} model with {count(facts.states, 'hidden state')}"
    single = ""
    if summary.leading:
        weights = [f"{name} ({percent(weight)})" for name, weight in summary.weights.items()]
        single = f" Its member {summary.leading} is a {model}."
        model = f"mixture of {join_names(weights)}"
    names = [f"{name} ({rows} rows)" for name, rows in zip(facts.series, facts.rows, strict=True)]
    data = join_names(names)
    if len(names) > 4:
        data = f"{len(names)} series with {sum(facts.rows)} rows in all"
    inputs = ", without inputs"
    if facts.inputs:
        inputs = f", driven by {join_names(facts.delayed_inputs)}"
    missing = ""
    if facts.missing:
        missing = f" {percent(facts.missing)} of the outputs are missing and were filled in."
    return (
        f"A {model} was fitted to {data}. It explains {join_names(facts.outputs)}{inputs}."
        f"{missing}{single}"
    )


def _about_output(output: OutputSummary, summary: Summary) -> str:
    unit = f" {output.unit}" if output.unit else ""
    near, far = (
        f"{error:.3g}{unit} ({percent(error / (output.spread or 1.0))}"
        for error in (output.one_step_error, output.free_run_error)
    )
    fades = (
        "A forecast stays less than half as uncertain as knowing nothing for "
        f"{len(summary.training.widening)} steps and more."
    )
    if output.half:
        steps = count(output.half, "step")
        fades = f"A forecast is half as uncertain as knowing nothing after {steps}."
    return (
        f"{output.name} varies by {output.spread:.3g}{unit} (standard deviation). One step ahead "
        f"the model errs by {near} of that), over {summary.training.horizon} steps without further "
        f"outputs by {far}), on the same training rows. {fades}"
    )


def _nonlinear(summary: Summary) -> Iterator[str]:
    if not summary.facts.kernel:
        return
    share = summary.training.nonlinear_change
    words = "practically linear"
    if share >= SLIGHT:
        words = f"{'clearly' if share > MARKED else 'somewhat'} nonlinear"
    yield (
        f"The dynamics are {words}: a linear map leaves {percent(share)} of the change from step "
        "to step unexplained."
    )
