"""What was fitted, in sentences that need no statistics to read."""

from collections.abc import Iterator

from gpssm.core.text import count, join_names, percent
from gpssm.evaluation.summary import Facts, OutputSummary, Summary

SAMPLED = {
    "good": "Chains agree about outputs and forecasts, and there are draws enough of them.",
    "fair": "Chains agree fairly about outputs and forecasts: means and intervals are usable, "
    "their last digit is not.",
    "poor": "Chains do not agree about outputs and forecasts: take everything below as "
    "provisional, and run it longer.",
}
APART = {
    "good": "Each chain, from a start of its own, has settled, and they agree about outputs and "
    "forecasts.",
    "fair": "Each chain has a model of its own, from its own start. Forecasts are the average "
    "over them, and intervals "
    "hold what they do not agree on: usable, but for their last digit.",
    "poor": "Chains from different starts have not converged, or found different models: take "
    "everything below as "
    "provisional.",
}  # where chains have models of their own
SLIGHT, MARKED = 0.01, 0.1  # shares of the change of the states that no linear map explains


def in_sentences(summary: Summary) -> list[str]:
    """A few paragraphs: the model and its data, the sampling, each output, and how nonlinear it all
    is.
    """
    return [
        _fitted(summary.facts),
        (APART if summary.sampling.within else SAMPLED)[summary.sampling.verdict],
        *(_output(one, summary) for one in summary.outputs),
        *_nonlinear(summary),
    ]


def _fitted(facts: Facts) -> str:
    states = count(facts.states, "hidden state")
    model = (
        f"A Gaussian process state-space model with {states}"
        if facts.kernel
        else f"A linear model with {states}"
    )
    names = [f"{name} ({rows} rows)" for name, rows in zip(facts.series, facts.rows, strict=True)]
    shown = (
        join_names(names)
        if len(names) <= 4
        else f"{len(names)} series with {sum(facts.rows)} rows in all"
    )
    driven = f", driven by {join_names(facts.controls)}" if facts.inputs else ", without controls"
    missing = (
        f" {percent(facts.missing)} of the outputs are missing and were filled in."
        if facts.missing
        else ""
    )
    return (
        f"{model} was fitted to {shown}. It explains {join_names(facts.outputs)}{driven}.{missing}"
    )


def _output(one: OutputSummary, summary: Summary) -> str:
    spread, unit = one.spread or 1.0, f" {one.unit}" if one.unit else ""
    fades = (
        f"A forecast is half as uncertain as knowing nothing after {count(one.half, 'step')}"
        if one.half
        else "A forecast stays less than half as uncertain as knowing nothing for "
        f"{summary.longest_run} steps and more"
    )
    near, far = (
        f"{error:.3g}{unit} ({percent(error / spread)}"
        for error in (one.one_step_error, one.free_run_error)
    )
    return (
        f"{one.name} varies by {one.spread:.3g}{unit} (standard deviation). One step ahead the "
        f"model errs by {near} of "
        f"that), over {summary.free_run_steps} steps without looking by {far}), on data it was "
        f"trained on. {fades}."
    )


def _nonlinear(summary: Summary) -> Iterator[str]:
    if not summary.facts.kernel:
        return
    share = summary.nonlinear_change
    if share < SLIGHT:
        words = "The dynamics are as good as linear"
    else:
        words = f"The dynamics are {'clearly' if share > MARKED else 'somewhat'} nonlinear"
    yield (
        f"{words}: a linear map leaves {percent(share)} of the change from step to step "
        "unexplained."
    )
