"""
The modules of L{txrdma.mad}, and L{txrdma.interfaces}.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType

import txrdma
import txrdma.interfaces
import txrdma.mad


def modules() -> Iterator[ModuleType]:
    """Every module of management datagrams, and that of the seams."""
    yield txrdma.interfaces
    for found in walk_packages(txrdma.mad.__path__, "txrdma.mad."):
        yield import_module(found.name)
