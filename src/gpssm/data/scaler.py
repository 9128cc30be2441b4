"""Scaling of outputs and inputs by statistics of the training data."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float

from gpssm.core.text import check_choice
from gpssm.data.series import Series, as_list, varying

Scaling = Literal["standard", "scale", "none"]
FAR = 1e12  # standard deviations from the training data beyond which values are rejected


@dataclass(frozen=True)
class Scaler:
    """The affine maps y ↦ (y − output_mean) / output_std and u ↦ (u − input_mean) / input_std.

        scaler = Scaler.fit(train)
        scaled = scaler.scale(test)
        scaler.unscale_mean(scaled.y)  # test.y, up to rounding

    All results are NumPy arrays. The fields have one entry per column; they are tuples of floats,
    so that a scaler can be compared, hashed and stored.
    """

    output_mean: tuple[float, ...]
    output_std: tuple[float, ...]
    input_mean: tuple[float, ...]
    input_std: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("output_mean", "output_std", "input_mean", "input_std"):
            numbers = getattr(self, name)
            floats = all(
                isinstance(number, float | int)
                and abs(number) <= (2**53 if isinstance(number, int) else sys.float_info.max)
                for number in numbers
            )
            if not floats or not (all(numbers) or name.endswith("mean")):
                raise ValueError(
                    f"a scaler's {name} must be finite, and a std not 0; got {numbers}"
                )
        pairs = ((self.output_mean, self.output_std), (self.input_mean, self.input_std))
        if any(len(means) != len(stds) for means, stds in pairs):
            raise ValueError(f"a scaler needs one mean per standard deviation; got {pairs}")

    @classmethod
    def fit(
        cls, series: Any, *, outputs: Scaling = "standard", inputs: Scaling = "standard"
    ) -> "Scaler":
        """Compute the scaler from all rows of the training series; missing outputs are ignored.

        Parameters
        ----------
        series
            Data accepted by `Series.of`, or a list of these.
        outputs, inputs
            "standard" shifts to mean 0 and divides by the standard deviation; "scale" only divides,
            so that zero and signs keep their meaning; "none" changes nothing. A constant column is
            not divided.
        """
        experiments = as_list(series)
        y, u = (np.concatenate([getattr(x, name) for x in experiments]) for name in ("y", "u"))
        return cls(*_statistics(y, outputs), *_statistics(u, inputs))

    def scale(self, series: Series) -> Series:
        """Return the series in scaled units, with the same names, sampling time and missing
        values."""
        if not isinstance(series, Series):
            raise TypeError(
                f"scale needs a Series; got {type(series)}. For inputs alone, use scale_inputs"
            )
        y = _to_scaled(series.y, self.output_mean, self.output_std, "outputs", series.outputs)
        u = _to_scaled(series.u, self.input_mean, self.input_std, "inputs", series.inputs)
        return replace(series, y=y, u=u)

    def scale_inputs(self, u: Any) -> Float[np.ndarray, "*batch T Du"]:
        """Return inputs (..., T, Du) in scaled units, (u − input_mean) / input_std."""
        return _to_scaled(u, self.input_mean, self.input_std, "inputs")

    def unscale_mean(self, y: Any) -> Float[np.ndarray, "*batch Dy"]:
        """Return means or paths (..., Dy) in the user's units, output_std · y + output_mean."""
        array = _checked(y, self.output_std, "outputs")
        return array * np.array(self.output_std) + np.array(self.output_mean)

    def unscale_variance(self, variance: Any) -> Float[np.ndarray, "*batch Dy"]:
        """Return variances (..., Dy) in the user's units, output_std² · variance."""
        return _checked(variance, self.output_std, "outputs") * np.square(self.output_std)


def output_spread(series: Sequence[Series]) -> Float[np.ndarray, " Dy"]:
    """Return the standard deviation of each output over all rows, the unit of scores for
    ranking."""
    return np.nanstd(np.concatenate([rows.y for rows in series]), axis=0)


def _statistics(
    rows: Float[np.ndarray, "T D"], scaling: Scaling
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return means and standard deviations of columns over the entries that are not NaN."""
    check_choice("scaling", scaling, get_args(Scaling))
    if scaling == "none":
        return (0.0,) * rows.shape[1], (1.0,) * rows.shape[1]
    observed = [column[~np.isnan(column)] for column in rows.T]
    shift = scaling == "standard"
    means = tuple(float(column.mean()) if shift and column.size else 0.0 for column in observed)
    stds = (
        float(column.std()) if varies else 1.0
        for column, varies in zip(observed, varying(rows), strict=True)
    )
    return means, tuple(stds)


def _to_scaled(
    values: Any,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    kind: str,
    names: tuple[str, ...] = (),
) -> np.ndarray:
    """Return (values − mean) / std; raise for values too far out for a model."""
    array = _checked(values, std, kind)
    with np.errstate(over="ignore"):
        scaled = (array - np.array(mean)) / np.array(std)
    if (np.abs(scaled) > FAR).any():
        *_, row, column = np.argwhere(np.abs(scaled) > FAR)[0]
        name = repr(names[column]) if names else f"{column} of the {kind}"
        raise ValueError(
            f"column {name}, row {row} (counted from 0), is {array[..., row, column].flat[0]:g}: "
            f"more than {FAR:g} standard deviations of the training data away from them. Check its "
            "units; use NaN where it is missing"
        )
    return scaled


def _checked(values: Any, std: tuple[float, ...], kind: str) -> Float[np.ndarray, "*batch D"]:
    """Return `values` as a NumPy array after checking its last axis, to prevent broadcasting."""
    try:
        array = np.asarray(values)
    except ValueError:
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        raise TypeError(
            f"the scaler needs arrays of numbers; got {type(values).__name__} of {array.dtype}"
        )
    if array.shape[-1:] != (len(std),):
        raise ValueError(
            f"the scaler was fitted to {len(std)} {kind}; got an array of shape {array.shape}"
        )
    return array
