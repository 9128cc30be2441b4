"""Checks of arguments: what they refuse, and in which words."""

import pytest

from gpssm.core.text import check_whole


def test_whole_numbers():
    check_whole("thin", 1, 1)
    check_whole("window", None, 1, none="for all rows")
    for value in (0, 2.0, "3", True, None):
        with pytest.raises(ValueError, match=f"^thin must be a whole number of at least 1, got {value!r}\\.$"):
            check_whole("thin", value, 1)
    with pytest.raises(ValueError, match="window must be a whole number of at least 1, or None for all rows; got 0"):
        check_whole("window", 0, 1, none="for all rows")
