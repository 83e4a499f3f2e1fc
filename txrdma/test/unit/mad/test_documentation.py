"""
Docstrings of the public names of L{txrdma.mad}.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType
from typing import Any

from zope.interface import implementedBy
from zope.interface.interface import InterfaceClass

from twisted.trial.unittest import SynchronousTestCase

import txrdma.interfaces
import txrdma.mad
from txrdma.kit.wire import Layout


def modules() -> Iterator[ModuleType]:
    yield txrdma.interfaces
    for found in walk_packages(txrdma.mad.__path__, "txrdma.mad."):
        yield import_module(found.name)


def ours(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name, thing in vars(module).items():
        isKind = isinstance(thing, (type, InterfaceClass)) or inspect.isfunction(thing)
        if isKind and not name.startswith("_") and thing.__module__ == module.__name__:
            yield f"{module.__name__}.{name}", thing


class ReferenceTests(SynchronousTestCase):
    def test_docstrings(self) -> None:
        silent = []
        for module in list(modules()):  # subclasses are known when all are loaded
            if module.__name__.rpartition(".")[2].startswith("_"):
                continue
            if not module.__doc__:
                silent.append(module.__name__)
            for name, thing in ours(module):
                generated = f"{thing.__name__}("  # as dataclasses describe themselves
                if not thing.__doc__ or thing.__doc__.startswith(generated):
                    silent.append(name)
                if isinstance(thing, InterfaceClass):
                    silent += [f"{name}.{part}" for part in thing.names() if not thing[part].__doc__]
                elif isinstance(thing, type):
                    described = {
                        part
                        for kind in (thing, *type.__subclasses__(thing))
                        for interface in implementedBy(kind)
                        for part in interface.names(all=True)
                    }
                    silent += [
                        f"{name}.{part}"
                        for part, method in vars(thing).items()
                        if not part.startswith("_")
                        and part not in described
                        and (inspect.isfunction(method) or isinstance(method, (classmethod, property)))
                        and not inspect.getdoc(getattr(thing, part))
                    ]
        self.assertEqual(silent, [])

    def test_sections(self) -> None:
        silent = []
        for module in modules():
            follows = (
                "Follows" in (module.__doc__ or "") or module.__name__ == "txrdma.mad.ports.ibsim"
            )  # its own
            for name, thing in ours(module):
                if isinstance(thing, type) and issubclass(thing, Layout):
                    if not follows and "(IBA" not in (thing.__doc__ or ""):
                        silent.append(name)
        self.assertEqual(silent, [])
