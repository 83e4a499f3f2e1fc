"""The kind of the installation: with cores compiled by mypyc, or pure Python."""

from __future__ import annotations

from importlib.util import find_spec

from txrdma import __version__


def areCoresCompiled() -> bool:
    """Return whether the modules that every message passes through are compiled, as in compiled wheels."""
    core = find_spec("txrdma.soft.shared._lane")
    return core is not None and not (core.origin or "").endswith(".py")


def version() -> str:
    """Return the version and the kind of the installation, for example C{0.1.0 (pure Python)}."""
    return f"{__version__} ({'compiled' if areCoresCompiled() else 'pure Python'})"
