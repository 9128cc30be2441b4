"""Docstrings as the site needs them."""

import re
from typing import Any

import griffe

BRACKETS = re.compile(r"^(?! {4})(.*)\]\[", re.MULTILINE)


class Tidy(griffe.Extension):
    """Rewrites docstrings before they are parsed, and shows each method once."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Escape `[x][y]` outside of code: brackets in maths are no links."""
        if obj.docstring is not None:
            obj.docstring.value = BRACKETS.sub(r"\1]\\[", obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Leave out methods of a subclass that its base class documents."""
        for base, subclass in _pairs(pkg):
            for name in set(base.members) & set(subclass.members):
                if subclass.members[name].is_function:
                    subclass.del_member(name)


def _pairs(module: griffe.Module) -> list[tuple[griffe.Class, griffe.Class]]:
    """Each class of a package with each of its base classes in the package, subclasses first."""
    pairs = [(base, item) for item in module.classes.values() for base in item.mro()]
    for inner in module.modules.values():
        if not inner.is_alias:
            pairs += _pairs(inner)
    return sorted(pairs, key=lambda pair: -len(pair[1].mro()))
