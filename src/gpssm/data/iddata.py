"""Read an `iddata` of MATLAB's System Identification Toolbox, saved as a struct.

    s = get(data); save('tank.mat', 's', '-v7')      % in MATLAB

Only MATLAB can read objects of classes in .mat files; `get` converts them to a struct.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gpssm.data.series import Series

ADVICE = "In MATLAB: s = get(data); save('tank.mat', 's', '-v7')"
# A struct is an iddata if it has outputs and one of these.
MARKS = {"Ts", "SamplingInstants", "OutputName", "InputName"}


def load_struct(path: Path) -> dict[str, Any]:
    """Return the variables of a .mat file, with structs as dictionaries."""
    from scipy.io import loadmat

    return loadmat(path, simplify_cells=True)


def read_iddata(path: Path, variables: Mapping[str, Any], **settings: Any) -> Series:
    """Return the series from the single iddata struct of a .mat file, or from its fields.

    Parameters
    ----------
    path
        The file.
    variables
        Its variables.
    **settings
        Parameters of `Series` that replace those of the file: name, dt, units.
    """
    data = _find_struct(path, variables)
    y = _field(data, "y", "OutputData")
    if str(_field(data, "Domain")).lower().startswith("freq"):
        raise ValueError(f"{path} contains frequency-domain data; a model needs time series")
    if np.asarray(y).dtype == object:
        raise ValueError(
            f"{path} contains {len(y)} experiments: save each in a separate file, s = "
            "get(getexp(data, k)), and pass a list of series"
        )
    outputs, inputs = (_texts(_field(data, name)) for name in ("OutputName", "InputName"))
    units = [*_texts(_field(data, "OutputUnit")), *_texts(_field(data, "InputUnit"))]
    facts = {"name": _field(data, "Name") or path.stem, "dt": _field(data, "Ts")}
    if facts["dt"] is None:  # irregular sampling
        facts["time"] = _field(data, "SamplingInstants")
    if len(units) == len(outputs) + len(inputs):
        pairs = zip([*outputs, *inputs], units, strict=True)
        facts["units"] = {name: unit for name, unit in pairs if unit}
    facts |= {name: value for name, value in settings.items() if value is not None}
    try:
        u = _field(data, "u", "InputData")
        return Series(y, u, outputs=outputs or None, inputs=inputs or None, **facts)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


def _find_struct(path: Path, variables: Mapping[str, Any]) -> Mapping[str, Any]:
    candidates = [variables, *(value for value in variables.values() if isinstance(value, dict))]
    structs = [
        item for item in candidates if {"y", "OutputData"} & item.keys() and MARKS & item.keys()
    ]
    if len(structs) != 1:
        names = ", ".join(name for name in variables if not name.startswith("__"))
        raise ValueError(
            f"{path} contains {len(structs)} iddata structs instead of one. {ADVICE}. To read "
            f"other variables, name the outputs, outputs=[...]; the file has {names or 'none'}"
        )
    return structs[0]


def _field(data: Mapping[str, Any], *names: str) -> Any:
    """Return the first of these fields that is not empty; None if there is none."""
    return next((data[name] for name in names if np.size(data.get(name, ())) > 0), None)


def _texts(cell: Any) -> list[str]:
    """Return a cell array of text as a list, with "" for empty text."""
    if cell is None:
        return []
    cells = [cell] if isinstance(cell, str) else cell
    return [str(text) if np.size(text) > 0 else "" for text in cells]
