"""`ffvd-auto`: for each data set, the settings that forecast best inside its training half.

They are found once a data set by `gpssm.select`, which is handed the training half alone, and kept in selections.json
beside the results. The cells of `ffvd-auto` are then cells like others, with these settings.
"""

import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpssm.bench.cells import OWN, Attempt, Cell, Line, attempt, failure, lost
from gpssm.bench.records import divide
from gpssm.core.files import digest, write_atomically
from gpssm.core.text import jsonable, to_json
from gpssm.data.series import Series
from gpssm.evaluation.select import select

AUTO = "ffvd-auto"
FILE = "selections.json"
STANDARD = "ffvd"  # the method of candidates that name none


@dataclass(frozen=True, eq=False)
class Search:
    """A data set for which settings are wanted; `settings` are arguments of `gpssm.select`."""

    dataset: str
    train: Series | Sequence[Series] = field(repr=False)
    settings: Mapping[str, Any]

    @property
    def identity(self) -> Line:
        """What a selection depends on: it is made again when this changes."""
        asked = digest(to_json(self.settings, indent=None, sort_keys=True))
        return {"dataset": self.dataset, "config_hash": asked, "data_hash": digest(self.train)}

    def died(self, error: BaseException) -> list[Line]:
        """The record of a search that took its process with it."""
        return [self.record(lost(error))]

    def record(self, found: Attempt) -> Line:
        """What came of it: the best settings, and all that were tried with their scores, or an error."""
        outcome = {"status": "ok", **found.value} if found.error is None else {"status": "failed"}
        rest = {"error": found.error, "traceback": found.trace, "seconds": found.seconds}
        return self.identity | jsonable(outcome | rest)


def run_search(search: Search) -> list[Line]:
    """Compare the candidates; one record, whatever happens."""
    return [search.record(attempt(_select, search.train, search.settings))]


def _select(train: Series | Sequence[Series], settings: Mapping[str, Any]) -> Line:
    found = select(train, **settings)
    rows = [
        {
            "settings": {name: value for name, value in row.items() if isinstance(value, str)},
            # A setting that this candidate has not is no number either.
            "scores": {name: value for name, value in row.items() if isinstance(value, float) and value == value},
        }
        for row in found.table.to_dict("records")
    ]
    return {"best": found.best, "table": rows}


def shared_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those for `gpssm.fit` among the settings of `ffvd-auto`, which all candidates and the cells have."""
    if wrong := [name for name in settings if name in OWN]:
        raise ValueError(f"settings of {AUTO!r} are arguments of gpssm.select; a sweep sets {wrong} itself")
    try:
        json.dumps(settings.get("candidates"))
    except TypeError as error:
        raise ValueError(f"candidates of {AUTO!r} are kept in {FILE} and made of plain values: {error}") from None
    own = inspect.signature(select).parameters
    return {"method": STANDARD} | {name: value for name, value in settings.items() if name not in own}


def searches(cells: Iterable[Cell], settings: Mapping[str, Any]) -> list[Search]:
    """One for each data set that has cells of `ffvd-auto`."""
    series = {cell.dataset: cell.series for cell in cells if cell.method == AUTO}
    return [Search(name, divide(one).train, settings) for name, one in series.items()]


def load_selections(folder: str | Path) -> dict[str, Line]:
    """The selections of a folder by data set."""
    path = Path(folder) / FILE
    return json.loads(path.read_text()) if path.is_file() else {}


def save_selections(folder: str | Path, selections: Mapping[str, Line]) -> None:
    """Write them, all or nothing."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    write_atomically(Path(folder) / FILE, lambda file: file.write(to_json(selections).encode()))


def is_made(search: Search, selections: Mapping[str, Line], retry: bool) -> bool:
    """Whether a selection answers the search; one that failed does unless it is to be tried again."""
    record = selections.get(search.dataset, {})
    same = all(record.get(name) == value for name, value in search.identity.items())
    return same and (record["status"] == "ok" or not retry)


def settled(cell: Cell, selections: Mapping[str, Line]) -> Cell:
    """The cell with the settings that were selected for it, if it is one of `ffvd-auto` and any were."""
    best = selections.get(cell.dataset, {}).get("best") if cell.method == AUTO else None
    return replace(cell, settings={**cell.settings, **best}) if best else cell


def unsettled(cell: Cell, selections: Mapping[str, Line]) -> list[Line]:
    """The failed results of a cell of `ffvd-auto` for which no settings could be found; none for other cells."""
    record = selections.get(cell.dataset, {}) if cell.method == AUTO else {}
    if record.get("status") != "failed":
        return []
    found = Attempt(None, f"selection failed, {record['error']}", record["traceback"], [], {})
    return [failure(cell, protocol, found) for protocol in cell.protocols]
