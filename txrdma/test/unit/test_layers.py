"""
Import layers: lower layers never import higher ones, and cores never import the reactor.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from twisted.trial.unittest import SynchronousTestCase

import txrdma
from txrdma.test.support import slow

PACKAGE = Path(txrdma.__file__).parent
CHECKOUT = PACKAGE.parent

LAYERS = {
    "kit": 1,
    "error": 1,
    "unix": 2,
    "iba": 2,
    "ports": 2,
    "interfaces": 3,
    "streams": 4,
    "messages": 3,
    "verbs": 4,
    "soft": 4,
    "mad": 4,
    "cm": 5,
    "smc": 5,
    "btl": 5,
    "pingpong": 5,
    "fabric": 5,
    "monitor": 5,
    "sim": 5,
    "tap": 6,
    "__main__": 6,
    "command": 6,
    "commands": 6,
    "web": 6,
    "metrics": 6,
    "telemetry": 6,
    "demo": 6,
    "verify": 6,
    "testing": 6,
    "test": 7,
}
"""The layer of each package and module."""

SAME_LAYER = {
    ("kit", "error"),
    ("ports", "iba"),
    ("sim", "fabric"),
    ("monitor", "fabric"),
    ("__main__", "command"),
    ("command", "commands"),
    ("commands", "tap"),
    ("commands", "verify"),
    ("verify", "testing"),
    ("demo", "commands"),
    ("demo", "web"),
}
"""Packages that may import another one of their layer."""

SEPARATED = {
    *((package, "soft") for package in ("cm", "smc", "btl", "pingpong", "fabric", "monitor")),
    *((package, "mad") for package in ("smc", "btl", "pingpong")),
    ("monitor", "verbs"),
}
"""
Packages that use each other only through L{txrdma.interfaces}, although the layers would allow an import.
"""

UPWARDS = {("interfaces", "mad")}
"""Packages that may import types of a higher layer: a handler of MADs gets a value of C{mad}."""

FOUNDATIONS = {"txrdma.smc.common"}
"""Subpackages that all others of their package may import; they import nothing else of the package."""

ACYCLIC = {"btl", "cm", "fabric", "mad", "monitor", "sim", "smc", "soft", "verbs", "verify"}
"""Packages whose subpackages and modules must not import each other in cycles."""

CORE_PACKAGES = {"soft", "mad", "cm", "smc", "btl", "monitor", "streams"}
CORE_FOLDERS = {"core", "flow", "terms", "wire"}
CORE_MAY_IMPORT = {*sys.stdlib_module_names, "typing_extensions", "automat", "txrdma"}


class Imported(NamedTuple):
    """An import statement: its line, its module, and whether it is for the type checker only."""

    line: int
    name: str
    typesOnly: bool


def isTypeChecking(test: ast.expr) -> bool:
    """Return whether this is the condition C{TYPE_CHECKING}."""
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


@cache
def imports(source: str, module: str, isPackage: bool = False) -> tuple[Imported, ...]:
    """
    Return every import of a module, including those inside functions.

    C{from txrdma import soft} counts as an import of C{txrdma.soft}.
    """

    def visit(node: ast.AST, typesOnly: bool) -> Iterator[Imported]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Imported(node.lineno, alias.name, typesOnly)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                parents = parts[: len(parts) - node.level + isPackage]
                base = ".".join([*parents, base] if base else parents)
            for alias in node.names:
                yield Imported(node.lineno, f"{base}.{alias.name}", typesOnly)
        elif isinstance(node, ast.If) and isTypeChecking(node.test):
            for statement in node.body:
                yield from visit(statement, True)
            for statement in node.orelse:
                yield from visit(statement, typesOnly)
        elif not isinstance(node, ast.expr):  # expressions contain no statement
            for child in ast.iter_child_nodes(node):
                yield from visit(child, typesOnly)

    return tuple(visit(ast.parse(source), False))


def packageOf(module: str) -> str | None:
    """Return the top-level package of a module of txrdma: the part after C{txrdma}."""
    parts = module.split(".")
    return parts[1] if parts[0] == "txrdma" and len(parts) > 1 else None


def isCore(module: str) -> bool:
    """Return whether a module must not do I/O."""
    parts = module.split(".")
    if len(parts) < 3 or parts[1] not in CORE_PACKAGES or parts[-1] == "__init__":
        return False
    # The core of the software device is its objects, not a machine without I/O.
    return parts[-1].startswith("_") or (parts[1] != "soft" and not CORE_FOLDERS.isdisjoint(parts[2:-1]))


def cycles(imported: dict[str, set[str]]) -> list[list[str]]:
    """
    Return the sets of modules that import each other in cycles, sorted.

    @param imported: what each module imports.
    """
    found: list[list[str]] = []
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open: list[str] = []

    def visit(module: str) -> None:  # Tarjan's strongly connected components
        numbers[module] = lowest[module] = len(numbers)
        open.append(module)
        for other in sorted(imported[module]):
            if other not in numbers:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in open:
                lowest[module] = min(lowest[module], numbers[other])
        if lowest[module] == numbers[module]:
            at = open.index(module)
            if len(open) - at > 1:
                found.append(sorted(open[at:]))
            del open[at:]

    for module in sorted(imported):
        if module not in numbers:
            visit(module)
    return found


@cache
def graph() -> dict[str, set[str]]:
    """Return the modules of the package without tests, with their imports, including those for types."""
    paths = {module: path for module, path in modules() if packageOf(module) not in ("test", None)}
    imported: dict[str, set[str]] = {}
    for module, path in paths.items():
        imported[module] = set()
        for _line, name, _typesOnly in imports(path.read_text(), module, path.name == "__init__.py"):
            while name and name not in paths:
                name = name.rpartition(".")[0]
            imported[module] |= {name} - {"", module}
    return imported


def parts(package: str, imported: dict[str, set[str]]) -> dict[str, set[str]]:
    """
    Return the direct subpackages and modules of a package, with their imports of each other.

    @param imported: what each module of C{txrdma} imports.
    """

    def part(module: str) -> str | None:
        names = module.split(".")
        return names[2] if names[1:2] == [package] and len(names) > 2 else None

    found: dict[str, set[str]] = {}
    for module, others in imported.items():
        if (name := part(module)) is not None:
            reached = {other for each in others if (other := part(each)) is not None}
            found[name] = found.get(name, set()) | (reached - {name})
    return found


def isForeignPrivate(name: str, package: str) -> bool:
    """Return whether a name is that of an underscore module which belongs to another package than this."""
    parts = name.split(".")
    private = next((at for at, part in enumerate(parts) if part.startswith("_") and part[:2] != "__"), None)
    return private is not None and not f"{package}.".startswith(".".join(parts[:private]) + ".")


def complaints(module: str, source: str, isPackage: bool = False) -> list[str]:
    """Return complaints about the imports of one module."""
    own = packageOf(module)
    if own == "test" and "pyverbs" not in source:
        return []  # only pyverbs is restricted there
    below = next((each for each in FOUNDATIONS if module.startswith(f"{each}.")), None)
    wrong: list[str] = []
    for line, name, typesOnly in imports(source, module, isPackage):

        def complain(why: str, line: int = line, name: str = name) -> None:
            wrong.append(f"{module}:{line} imports {name}: {why}")

        top = name.split(".")[0]
        if top == "pyverbs" and module != "txrdma.verbs.pyverbs.bindings":
            complain("only txrdma.verbs.pyverbs.bindings may")
        if own == "test" or own is None:
            continue
        other = packageOf(name)
        if isForeignPrivate(name, module if isPackage else module.rpartition(".")[0]) and other is not None:
            complain("an underscore module is for its own package only")
        if below is not None and own == other and not name.startswith(f"{below}."):
            complain(f"the rest of the package imports {below}, not the reverse")
        if other is not None and other in LAYERS:
            if other in ("test", "testing") and own != other and (own, other) not in SAME_LAYER:
                complain("only tests import the test kit")
            elif own == other or (typesOnly and (own, other) in UPWARDS):
                pass
            elif LAYERS[other] > LAYERS[own]:
                complain(f"layer {LAYERS[own]} is below layer {LAYERS[other]}")
            elif LAYERS[other] == LAYERS[own] and (own, other) not in SAME_LAYER:
                complain("packages of one layer do not import each other")
            elif (own, other) in SEPARATED:
                complain("these packages use each other through txrdma.interfaces only")
            elif isCore(module) and LAYERS[other] > 2 and not typesOnly:
                complain("a core imports layers 1 and 2 only")
        if isCore(module) and not typesOnly and top not in CORE_MAY_IMPORT:
            complain("a core imports the standard library and Automat only")
    return wrong


def modules() -> Iterator[tuple[str, Path]]:
    """Return every module of the package with its file."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(CHECKOUT).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


class LayerTests(SynchronousTestCase):
    """Import rules of the package."""

    @slow("Python parses every module of the package")
    def test_imports(self) -> None:
        """No module imports from a higher layer, or from a package that it must not use."""
        wrong = [
            complaint
            for module, path in modules()
            for complaint in complaints(module, path.read_text(), path.name == "__init__.py")
        ]
        self.assertEqual(wrong, [])

    @slow("Python parses every module of the package")
    def test_cycles(self) -> None:
        """Modules do not import each other in cycles; imports for types count."""
        self.assertEqual(cycles(graph()), [])

    @slow("Python parses every module of the package")
    def test_subpackages(self) -> None:
        """Subpackages do not import each other in cycles; imports for types count."""
        self.assertEqual(
            {package: cycles(parts(package, graph())) for package in ACYCLIC}, dict.fromkeys(ACYCLIC, [])
        )

    def test_everyPackageHasALayer(self) -> None:
        packages = {name for name in (packageOf(module) for module, _path in modules()) if name is not None}
        self.assertEqual(packages - set(LAYERS), set())

    def test_genericTuples(self) -> None:
        """A generic C{NamedTuple} is that of typing_extensions: Python 3.10 has none of its own."""
        wrong = [
            f"{module}: {node.name}"
            for module, path in modules()
            if "NamedTuple, Generic[" in (source := path.read_text())
            and "from typing_extensions import NamedTuple" not in source
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.ClassDef)
            and {"NamedTuple", "Generic"} <= {ast.unparse(base).partition("[")[0] for base in node.bases}
        ]
        self.assertEqual(wrong, [])

    def test_pluginsIsNoPackage(self) -> None:
        """There is no C{__init__.py} beside the plugins, which would replace Twisted's."""
        if not (CHECKOUT / "twisted").exists():
            self.skipTest("not a checkout: the dropins are in Twisted's own folder")
        if (CHECKOUT / "twisted" / "internet").exists():
            self.skipTest("installed beside Twisted, which owns these folders")
        self.assertFalse((CHECKOUT / "twisted" / "__init__.py").exists())
        self.assertFalse((CHECKOUT / "twisted" / "plugins" / "__init__.py").exists())


class ComplaintTests(SynchronousTestCase):
    """Violations of the rules are reported."""

    def test_cycle(self) -> None:
        """Modules in a cycle are reported, but not those that only import it."""
        imported = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": set(), "e": {"a"}, "f": {"e"}}
        self.assertEqual(cycles(imported), [["a", "b", "c"]])

    def test_parts(self) -> None:
        """Subpackages form a cycle even if no two of their modules do; other packages do not count."""
        imported = {
            "txrdma.smc.a.x": {"txrdma.smc.b.y", "txrdma.kit.z"},
            "txrdma.smc.a.z": {"txrdma.smc.a.x"},
            "txrdma.smc.b.y": set(),
            "txrdma.smc.b.w": {"txrdma.smc.a.z"},
            "txrdma.kit.z": set(),
        }
        self.assertEqual(parts("smc", imported), {"a": {"b"}, "b": {"a"}})
        self.assertEqual(cycles(parts("smc", imported)), [["a", "b"]])

    def test_complaints(self) -> None:
        """Each import that breaks a rule is reported once, and other imports are not."""
        core = "from txrdma.smc.group._groupstate import LinkLife"
        for count, module, source in (
            # A lower layer imports a higher one, also inside a function, by a relative name or for types.
            (1, "txrdma.iba.types", "import txrdma.smc.wire.clc"),
            (1, "txrdma.kit.wire", "def f():\n    from txrdma import iba"),
            (1, "txrdma.kit.wire", "from ..iba import types"),
            (1, "txrdma.iba.types", "if TYPE_CHECKING:\n    from txrdma.smc import endpoints"),
            (1, "txrdma.iba.types", "if TYPE_CHECKING:\n    pass\nelse:\n    from txrdma import soft"),
            (0, "txrdma.interfaces", "if TYPE_CHECKING:\n    from txrdma.mad.layouts import messages"),
            # A core imports Twisted, or a higher layer of its package.
            (1, "txrdma.soft.rc._requester", "from twisted.internet import defer"),
            (1, "txrdma.soft.rc._requester", "from txrdma.interfaces import IQueuePair"),
            (0, "txrdma.soft.rc._requester", "import automat, struct, txrdma.kit.wire"),
            (0, "txrdma.soft.rc.roce", "from twisted.internet import defer"),
            # Packages of one layer, and those that use each other through interfaces only, are separated.
            (1, "txrdma.smc.group.link", "from txrdma.soft.device import SoftDevice"),
            (1, "txrdma.cm.manager", "from txrdma.btl.module import ModulePort"),
            (0, "txrdma.sim.netfabrics", "from txrdma.fabric.model import Fabric"),
            (0, "txrdma.smc.group.link", "from txrdma.verbs.devices import openDevice"),
            # Underscore modules are for their own package and the packages inside it.
            (0, "txrdma.smc.group.link", core),
            (0, "txrdma.smc.group.deeper.link", core),
            (1, "txrdma.smc.stream.stream", core),
            (1, "txrdma.testing.smc.hosts", core),
            # A foundation imports nothing else of its package, which may import it everywhere.
            (1, "txrdma.smc.common.a", "from txrdma.smc.group.link import Link"),
            (0, "txrdma.smc.common.a", "from txrdma.smc.common.reactoruse import Use"),
            (0, "txrdma.smc.group.link", "from txrdma.smc.common.reactoruse import Use"),
            # One module imports pyverbs, and only tests import the test kit.
            (1, "txrdma.test.test_x", "import pyverbs.device"),
            (0, "txrdma.verbs.pyverbs.bindings", "import pyverbs.device"),
            (1, "txrdma.smc.group.link", "from txrdma.testing import contracts"),
            (0, "txrdma.test.test_link", "from txrdma.testing import contracts"),
        ):
            self.assertEqual(len(complaints(module, source)), count, (module, source))
