"""
The available programs, and the packages that they need.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Final

from txrdma.test.system.foreign.programs.program import Program

MODULES: Final = ("plainly", "rpc", "sessions", "trades", "web")


def programs() -> dict[str, Program]:
    """Return each program by its name, C{MODULE.CLASS}."""
    found: dict[str, Program] = {}
    for name in MODULES:
        module = import_module(f"txrdma.test.system.foreign.programs.{name}")
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, Program) and kind.__module__ == module.__name__:
                found[f"{name}.{kind.__name__}"] = kind()
    return found


def missing(program: Program) -> list[str]:
    """Return the names of modules that a program needs and that are not installed."""
    return [name for name in program.imports if find_spec(name) is None]


def versions(program: Program) -> str:
    """Return the packages of a program with their versions."""
    return ", ".join(f"{name} {version(name)}" for name in ("Twisted", *program.needs))
