"""Private names of Twisted: the installed version has them, and the package uses no others."""

from __future__ import annotations

import dis
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FunctionType

from twisted.trial.unittest import SynchronousTestCase

import txrdma
from txrdma.kit import twistedprivate
from txrdma.kit.twistedprivate import exists, missing, NAMES, require, UnsupportedTwisted

PACKAGE = Path(txrdma.__file__).parent


DOTTED = re.compile(r"\.(_[a-zA-Z]\w*)")
"""A private attribute."""

BOUND = re.compile(r"(?<![\w.\"])(_[a-zA-Z]\w*)|\bself\.(_[a-zA-Z]\w*)(?=[^\n]* = )")
"""A private name without a dot before it, as in a definition, or an attribute of self that is set."""

PYTHON = {
    "_abc_impl",
    "_asdict",
    "_exit",
    "_fields",
    "_getframe",
    "_missing_",
    "_name_",
    "_replace",
    "_testMethodName",
    "_value2member_map_",
    "_value_",
}
"""Names of the standard library that are documented, or used on purpose."""


def sources() -> dict[str, str]:
    """Return the text of each module except tests and public test support, by name."""
    paths = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path
        for path in PACKAGE.rglob("*.py")
    }
    hidden = ("txrdma.test.", "txrdma.testing.")
    return {name: path.read_text() for name, path in paths.items() if not name.startswith(hidden)}


@cache
def private(cls: type) -> frozenset[str]:
    """Return the private attributes that a class has, and those that its methods use."""
    names = {*vars(cls)}
    for value in vars(cls).values():
        function = value.fget if isinstance(value, property) else getattr(value, "__wrapped__", value)
        if isinstance(function, FunctionType):
            steps = dis.get_instructions(function)
            names |= {str(each.argval) for each in steps if each.opname.endswith(("_ATTR", "_METHOD"))}
    return frozenset(name for name in names if re.fullmatch(r"_[a-zA-Z]\w*", name))


def inherited(module: str) -> Iterator[tuple[str, str, str]]:
    """Yield the private names that classes of a module share with their base classes of Twisted but trial."""
    try:
        classes = [each for each in vars(import_module(module)).values() if isinstance(each, type)]
    except ImportError:
        return  # it needs an extra
    for cls in classes:
        if cls.__module__ == module:
            for base in cls.__mro__:
                if re.match(r"twisted\.(?!trial\.)", base.__module__):
                    yield from ((module, cls.__name__, name) for name in private(cls) & private(base))


class NamesTests(SynchronousTestCase):
    def test_exist(self) -> None:
        """The installed Twisted has every private name in the list."""
        self.assertEqual([f"{each.owner}.{each.name}" for each in missing()], [])

    def test_used(self) -> None:
        """Every module in the list uses the name."""
        texts = sources()
        for each in NAMES:
            for module in each.modules:
                self.assertRegex(texts[module], rf"\b{each.name}\b", module)

    def test_complete(self) -> None:
        """Private names that a module uses are defined in the package or listed."""
        texts = sources()
        known = {each.name for each in NAMES} | PYTHON | {name.rpartition(".")[2] for name in texts}
        for text in texts.values():
            known |= {one or other for one, other in BOUND.findall(text)}
        for module, text in texts.items():
            self.assertEqual(set(DOTTED.findall(text)) - known, set(), module)
            private = re.findall(
                r"^ *from twisted\S*\._|^ *from twisted\S* import .*\b_\w+", text, re.MULTILINE
            )
            self.assertEqual(len(private), module == "txrdma.streams.transport", module)

    def test_exists(self) -> None:
        """Attributes of classes, of instances and of modules are found."""
        self.assertTrue(exists("twisted.internet.tcp.Connection", "_closeSocket"))
        self.assertTrue(exists("twisted.internet.posixbase.PosixReactorBase", "_internalReaders"))
        self.assertTrue(exists("twisted.internet._newtls", "startTLS"))
        self.assertFalse(exists("twisted.internet.tcp.Connection", "_noSuchName"))
        self.assertFalse(exists("twisted.internet.tcp.NoSuchClass", "_closeSocket"))
        self.assertFalse(exists("twisted.internet._noSuchModule", "startTLS"))

    def test_require(self) -> None:
        """If Twisted lacks a name, importing the module fails with the name and advice."""
        require("txrdma.smc.handshake.plaintcp")
        self.patch(twistedprivate, "exists", lambda owner, name: name != "_closeSocket")
        error = self.assertRaises(UnsupportedTwisted, require, "txrdma.smc.handshake.plaintcp")
        self.assertIn("twisted.internet.tcp.Connection._closeSocket", str(error))
        self.assertIn("install an earlier release of Twisted", str(error))

    def test_fallback(self) -> None:
        self.patch(twistedprivate, "exists", lambda owner, name: name != "_tempDataLen")
        self.assertEqual([each.name for each in missing()], ["_tempDataLen"])
        require("txrdma.smc.handshake.negotiation")


class InheritanceTests(SynchronousTestCase):
    """Names that another class of txrdma has as well, which L{NamesTests} takes for its own."""

    slowBecause = "imports every module"

    def test_inherited(self) -> None:
        """A class shares a private name with its base class of Twisted only if that is listed."""
        found = {each for name in sources() if not name.endswith("__main__") for each in inherited(name)}
        self.assertIn(("txrdma.verbs.polling", "PollingReactor", "_newTimedCalls"), found)
        listed = {(module, each.name) for each in NAMES for module in each.modules}
        unknown = {each for each in found if (each[0], each[2]) not in listed and each[2] not in PYTHON}
        self.assertEqual(unknown, set())
