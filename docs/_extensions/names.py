"""
Names of code and of tests in pages: what a name refers to. A test uses this module without Sphinx.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import cast, Final

from zope.interface.interface import InterfaceClass

_TESTS: Final = Path(__file__).parents[2] / "txrdma" / "test"
_GROUPS: Final = ("unit", "integration", "system", "soak")


def referencePage(dotted: str) -> str | None:
    """Return the page and anchor of a name in pydoctor's output; None if there is none."""
    page, thing = "", cast(object, None)
    names = dotted.split(".")
    while names and (found := _module(f"{page}.{names[0]}".lstrip("."))) is not None:
        page, thing = found.__name__, found
        del names[0]
    place = ""
    for name in names:
        if not hasattr(thing, name):
            return None
        thing = getattr(thing, name)
        if isinstance(thing, (type, InterfaceClass)):
            page, place = f"{page}.{name}", ""
        else:
            place = f"#{name}"
    return f"{page}.html{place}"


def _module(name: str) -> ModuleType | None:
    try:
        return import_module(name)
    except ModuleNotFoundError:
        return None


def isTest(dotted: str) -> bool:
    """Return whether a group of tests (unit, integration, system, soak) has this module, class or method."""
    names = dotted.split(".")
    modules = [position for position, name in enumerate(names, 1) if name.startswith("test_")]
    if not modules:
        return False
    paths = (_TESTS.joinpath(group, *names[: modules[0]]).with_suffix(".py") for group in _GROUPS)
    return any(path.is_file() and _defines(path, names[modules[0] :]) for path in paths)


def _defines(path: Path, names: list[str]) -> bool:
    found: ast.AST = _parsed(path)
    for name in names:
        children = (each for each in ast.iter_child_nodes(found) if getattr(each, "name", None) == name)
        inner = next(children, None)
        if inner is None:
            return False
        found = inner
    return True


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())
