"""Every table of the packages that serve peers has a declared bound: see L{txrdma.test.support.bounds}."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

from twisted.trial.unittest import SynchronousTestCase

import txrdma
from txrdma.test.support import slow
from txrdma.test.support.bounds import BOUNDS, REASONS

PACKAGES: Final = (
    "btl cm fabric kit mad messages monitor pingpong ports smc soft streams tap unix verbs verify".split()
)
KINDS: Final = frozenset(
    "bytearray Counter defaultdict deque dict list OrderedDict set WeakKeyDictionary WeakSet "
    "WeakValueDictionary".split()
)
ROOT: Final = Path(txrdma.__file__).parent


def nameOf(function: ast.AST) -> str:
    """Return the last name of a function or target, without type arguments."""
    while isinstance(function, ast.Subscript):
        function = function.value
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def isTable(value: ast.expr | None) -> bool:
    """Return whether an expression creates an empty container without a bound."""
    if isinstance(value, ast.Dict):
        return not value.keys
    if isinstance(value, ast.List):
        return not value.elts
    if not isinstance(value, ast.Call):
        return False
    name, keywords = nameOf(value.func), {each.arg: each.value for each in value.keywords}
    factory = keywords.get("default_factory", keywords.get("factory"))
    if factory is not None or name == "Factory":
        return nameOf(factory or value.args[0]) in KINDS
    if name not in KINDS:
        return False
    isBounded = name == "deque" and (len(value.args) > 1 or "maxlen" in keywords)
    return not isBounded and (name == "defaultdict" or not value.args)


def isEmpty(value: ast.expr | None) -> bool:
    """Return whether an expression is an empty tuple or empty bytes."""
    if isinstance(value, ast.Tuple):
        return not value.elts
    return isinstance(value, ast.Constant) and value.value == b""


def grown(module: ast.AST) -> Iterator[str]:
    """Return the names of what a module replaces by longer values, as by C{+=} or C{(*old, new)}."""
    for each in ast.walk(module):
        if isinstance(each, ast.AugAssign):
            yield nameOf(each.target)
        elif isinstance(each, ast.Assign):
            written = {nameOf(one) for target in each.targets for one in ast.walk(target)}
            sums = [one for one in ast.walk(each.value) if isinstance(one, (ast.BinOp, ast.Starred))]
            former = {nameOf(one.left if isinstance(one, ast.BinOp) else one.value) for one in sums}
            yield from written & former


def statements(block: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Return the statements of a block and of all blocks in it, but no expressions."""
    for each in block:
        yield each
        for name in ("body", "handlers", "orelse", "finalbody", "cases"):
            yield from statements(getattr(each, name, ()))


def assigned(statement: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Return the targets of an assignment with their values."""
    if isinstance(statement, ast.AnnAssign):
        yield statement.target, statement.value
    elif isinstance(statement, ast.Assign):
        for target in statement.targets:
            if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
                yield from zip(target.elts, statement.value.elts, strict=True)
            else:
                yield target, statement.value


def tables(source: str, name: str) -> Iterator[str]:
    """Return the tables of a module, as C{module.name}, and of its classes, as C{Class.attribute}."""
    module = ast.parse(source)
    longer = set(grown(module))
    for kind in (module, *statements(module.body)):
        if not isinstance(kind, (ast.Module, ast.ClassDef)):
            continue
        for statement in kind.body:
            isMethod = isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef))
            for each in statements((statement,)) if isMethod else (statement,):
                for target, value in assigned(each):
                    isSelf = isinstance(target, ast.Attribute) and nameOf(target.value) == "self"
                    isGrown = isEmpty(value) and nameOf(target) in longer
                    isOfClass = isSelf or isinstance(target, ast.Name) and not isMethod
                    if isOfClass and (isGrown or isTable(value)):
                        yield f"{getattr(kind, 'name', name)}.{nameOf(target)}"


def listed(names: str) -> Iterator[str]:
    """Expand a reason's list of tables in C{BOUNDS}: C{package.Class.one,other} are two."""
    for each in names.split():
        owner, _, attributes = each.rpartition(".")
        yield from (f"{owner}.{attribute}" for attribute in attributes.split(","))


def isLimit(name: str) -> bool:
    """Return whether this names a constant with a positive number; the name lacks C{txrdma}."""
    module, _, constant = name.rpartition(".")
    value = getattr(import_module(f"txrdma.{module}"), constant, None)
    return isinstance(value, (int, float)) and 0 < value < float("inf")


def different(found: Iterable[str], bounded: Iterable[str]) -> list[str]:
    """Return sentences about tables without a bound, and about bounds of tables that do not exist."""
    found, bounded = list(found), list(bounded)
    lines = [f"{each}: what bounds it? Add it to BOUNDS." for each in sorted({*found} - {*bounded})]
    lines += [f"{each}: there is no such table." for each in sorted({*bounded} - {*found})]
    return lines + [f"{each} is in BOUNDS twice." for each in sorted({*bounded}) if bounded.count(each) > 1]


class TableTests(SynchronousTestCase):
    @slow("Python parses every module of sixteen packages")
    def test_all(self) -> None:
        """Each table is in C{BOUNDS} once, and C{BOUNDS} contains nothing else."""
        found = [
            f"{package}.{name}"
            for package in PACKAGES
            for path in sorted((ROOT / package).rglob("*.py"))
            for name in tables(path.read_text("utf-8"), path.stem)
        ]
        self.assertGreater(len(found), 400)
        bounded = [name for names in BOUNDS.values() for name in listed(names)]
        self.assertEqual(different(found, bounded), [])

    def test_reasons(self) -> None:
        """Tables are listed below a reason, or below the name of a constant that limits them."""
        for reason in BOUNDS:
            self.assertTrue(reason in REASONS or isLimit(reason), reason)

    def test_noLimits(self) -> None:
        """A constant that does not exist or is not a number is no limit."""
        self.assertFalse(isLimit("btl.inbox.MOST_NOTHING"))
        self.assertFalse(isLimit("btl.inbox.Inbox"))
        self.assertTrue(isLimit("btl.inbox.MOST_TAGS"))

    def test_kinds(self) -> None:
        """Empty containers of all kinds are tables, and values that grow; those with a bound are not."""
        source = """
thirteen: dict[int, int] = {}
fourteen = WeakSet()
no = {1: 2}
fifteen = ()
fifteen += (1,)

def function():
    local = {}

class Some:
    one: dict[int, int] = field(default_factory=dict[int, int])
    two: list[int] = attrs.field(factory=list)
    three: set[int] = Factory(set)
    no: tuple[int, ...] = ()
    ten = b""

    def __init__(self, others):
        self.four: dict[int, bytes] = {}
        self.five, self.no = [], 0
        self.six = deque[bytes]()
        self.seven = collections.defaultdict(list)
        self.eight = self.nine = bytearray()
        self.no = deque(maxlen=5)
        self.no = deque((), 5)
        self.no = list(others)
        self.no = {1: 2}
        local = []
        self.eleven = self.twelve = self.no = ()

    def grow(self, data):
        *lines, self.ten = (self.ten + data).split()
        self.eleven += (data,)
        self.twelve = (data, *self.twelve)[:5]
        self.no = (*data, 1)
"""
        ofModule = [f"module.{each}" for each in ("thirteen", "fourteen", "fifteen")]
        numbers = "one two three ten four five six seven eight nine eleven twelve".split()
        ofClass = [f"Some.{each}" for each in numbers]
        self.assertEqual(list(tables(source, "module")), ofModule + ofClass)

    def test_different(self) -> None:
        """A table without a bound, one that does not exist, and one with two bounds are reported."""
        lines = different(["a.B.new", "a.B.twice"], listed("a.B.gone,twice a.B.twice"))
        self.assertEqual(
            [line.split(":")[0].split()[0] for line in lines], ["a.B.new", "a.B.gone", "a.B.twice"]
        )
