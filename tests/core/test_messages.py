"""Warnings: one per cause and call."""

import warnings

from gpssm.core.messages import distinct_warnings, warn


def test_warnings_that_differ_in_numbers_are_given_once():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with distinct_warnings():
            for row in range(5):
                warn(f"Row {row} is {row / 4:.2f} s late")
            warn("The input is constant")
    assert [str(warning.message) for warning in caught] == [
        "Row 0 is 0.00 s late (4 more warnings like this one.)",
        "The input is constant",
    ]
    assert {warning.filename for warning in caught} == {__file__}
