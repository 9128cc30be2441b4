"""Series by name: the benchmarks of `gpssm.datasets`, or simulations that need no file."""

from collections.abc import Mapping, Sequence
from typing import Literal

from gpssm import datasets
from gpssm.benchmark.published import DATASETS
from gpssm.series import Series

SIMULATION = "sim:"

Datasets = Sequence[str] | Mapping[str, Series] | Literal["all"]


def load_all(chosen: Datasets) -> dict[str, Series]:
    """Series by name: of the given names, "all" six benchmarks, or the user's own as they are."""
    if isinstance(chosen, Mapping):
        return dict(chosen)
    if isinstance(chosen, str) and chosen != "all":
        raise TypeError(f"datasets must be a list of names, a mapping of names to series, or 'all'; got {chosen!r}")
    return {name: load_one(name) for name in (DATASETS if chosen == "all" else chosen)}


def load_one(name: str) -> Series:
    """A benchmark, or `sim:duffing` for a simulation, with options as in `sim:duffing:num_steps=120:noise_std=0.1`."""
    if not name.startswith(SIMULATION):
        return datasets.load(name)
    simulator, *options = name.removeprefix(SIMULATION).split(":")
    pairs = [option.partition("=") for option in options]
    if not all(value for _, _, value in pairs):
        raise ValueError(f"a simulation is named sim:NAME or sim:NAME:option=value:...; got {name!r}")
    return datasets.simulate(simulator, **{key: _number(value, name) for key, _, value in pairs}).series


def _number(text: str, name: str) -> int | float:
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        raise ValueError(f"a simulation's options are numbers; got {text!r} in {name!r}") from None
