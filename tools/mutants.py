#!/usr/bin/env python3
"""
Measure how many mutants of the protocol cores the tests kill.

A mutant is one of the modules in L{GROUPS} with one small change, such as C{<} in place of C{<=}. C{draw}
chooses mutants at random by cosmic-ray and stores them in C{tools/mutants.json}. C{run} finds for each a test
that kills it, and stores this test as its C{full} or C{fast} result; tests that state why they are slow are
not fast. Mutants are stored as text. A mutant whose line has changed since is not applicable, and survives;
C{redraw} replaces it.

The checkout is not changed: an import hook, which a C{sitecustomize} module on C{PYTHONPATH} installs, loads
the changed source in each Python process that a test starts. The known tests and their durations are those
that C{tools/runtests.py} has recorded.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import accumulate, chain, groupby
from pathlib import Path
from typing import Any, Final

from runtests import allowDescriptors

CHECKOUT: Final = Path(__file__).resolve().parent.parent
WORKER: Final = CHECKOUT / "tools" / "testworker.py"
RESULTS: Final = CHECKOUT / "tools" / "mutants.json"
TESTED: Final = CHECKOUT / "build" / "tests" / "results.jsonl"
"""Each test of the last run, with its seconds."""

SEED: Final = 23
PER_GROUP: Final = 50
REQUIRED: Final = 0.99
"""The share of the mutants killed by the full suite that the fast suite has to kill."""

MEMORY: Final = 6 << 30
"""Limit of the address space of each process: a mutant may append endlessly."""

SLOW_SECONDS: Final = 2.0
"""Slower tests are run last, only for mutants that survive the others."""

NEAR_SECONDS: Final = 3.0
"""Time limit of the tests that run against each mutant alone, before the survivors are run together."""

ENVIRONMENT: Final = {"TXRDMA_FIRST": "1", "CI": "1"}  # CI: Hypothesis without random


@dataclass(frozen=True)
class Group:
    """Modules of one package that are mutated, and the test modules closest to them."""

    package: str
    modules: str
    near: str

    @property
    def paths(self) -> list[str]:
        """Return the modules, relative to the checkout."""
        return [f"txrdma/{self.package}/{module}.py" for module in self.modules.split()]


GROUPS: Final = {
    "smc flow": Group(
        "smc/flow",
        "flow ring",
        "smc.test_ring smc.test_flow smc.test_flushing smc.test_transport smc.test_scenario",
    ),
    "smc closing": Group(
        "smc/flow",
        "closing",
        "smc.test_closing smc.test_closenotifier smc.test_transport smc.test_scenario",
    ),
    "smc handshake": Group(
        "smc",
        "handshake/_machine terms/offer signalling/silence",
        "smc.test_handshake smc.test_offer smc.test_silence smc.test_versions smc.test_scenario",
    ),
    "soft rc": Group(
        "soft/rc",
        "_requester _responder _packets _answers _entries _window _migration",
        "soft.test_window soft.test_requester soft.test_responder soft.test_outstanding soft.test_resending "
        "soft.test_atomics soft.test_migration soft.test_recorded soft.test_queuepair",
    ),
    "cm": Group(
        "cm/core",
        "alternate closing connection dispatcher exchange opening sidr",
        "cm.test_manager cm.test_strangers cm.test_opening cm.test_alternate cm.test_datagrams "
        "cm.test_searching cm.test_cancel",
    ),
    "btl window": Group(
        "btl/core",
        "window congestion roundtrip",
        "btl.test_window btl.test_packs btl.test_module btl.test_model btl.test_paths",
    ),
    "mad calls": Group(
        "mad/core",
        "calls rmpp",
        "mad.test_rmpp mad.test_agent mad.test_rmpp_long mad.test_recorded "
        "mad.test_faults mad.test_faults_long",
    ),
    "monitor findings": Group(
        "monitor/diagnosis",
        "findinglog",
        "monitor.test_findings monitor.test_modelupdates monitor.test_restoring monitor.test_running",
    ),
}

_HOOK: Final = """
import os
import sys
from contextlib import suppress
from importlib.machinery import PathFinder, SourceFileLoader

class MutatedLoader(SourceFileLoader):
    def get_data(self, path):
        with suppress(OSError):  # in a process of another user
            open(os.path.join(FOLDER, "..", "loaded", self.name), "a").close()
        with open(os.path.join(FOLDER, self.name), "rb") as file:
            return file.read()

    def path_stats(self, path):
        raise OSError  # nothing is read from or written to the cache of compiled modules

class MutantFinder:
    def find_spec(self, name, path=None, target=None):
        if name not in NAMES:
            return None
        spec = PathFinder.find_spec(name, path)
        spec.loader = MutatedLoader(name, spec.origin)
        return spec

FOLDER = os.path.dirname(os.path.abspath(__file__))
NAMES = frozenset(os.listdir(FOLDER))
sys.meta_path.insert(0, MutantFinder())
"""


@dataclass
class Mutant:
    """One change: the lines C{before} become C{after}."""

    group: str
    path: str
    line: int
    operator: str
    occurrence: int
    before: str
    after: str
    full: str | None = None
    fast: str | None = None

    def edit(self, source: str) -> tuple[int, int, str] | None:
        """Return start, end and replacement in the source; None if the source has changed since."""
        offsets, offset = [], 0
        for number, line in enumerate(source.splitlines(keepends=True), 1):
            if source.startswith(self.before, offset):
                offsets.append((abs(number - self.line), offset))
            offset += len(line)
        if not offsets:
            return None
        start, endBefore, endAfter = difference(self.before, self.after)
        offset = min(offsets)[1]
        return offset + start, offset + endBefore, self.after[start:endAfter]

    def characters(self, source: str) -> set[tuple[str, int]]:
        """Return the path and the changed characters of the edit; none if the source has changed since."""
        edit = self.edit(source)
        return {(self.path, offset) for offset in range(edit[0], edit[1] + 1)} if edit else set()


def difference(before: Sequence[Any], after: Sequence[Any]) -> tuple[int, int, int]:
    """Return where two sequences begin to differ, and where the difference ends in each."""
    start = 0
    while start < min(len(before), len(after)) and before[start] == after[start]:
        start += 1
    same = 0
    while same < min(len(before), len(after)) - start and before[-1 - same] == after[-1 - same]:
        same += 1
    return start, len(before) - same, len(after) - same


def mutated(source: str, mutants: Iterable[Mutant]) -> str:
    """Return the source with the changes of all mutants."""
    edits = [edit for mutant in mutants if (edit := mutant.edit(source))]
    for start, end, text in sorted(edits, reverse=True):
        source = source[:start] + text + source[end:]
    return source


# Drawing


class Meaning(ast.NodeTransformer):
    """Removes code without effect at run time: annotations, docstrings, imports for type checkers."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Remove the annotation of a variable."""
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        """Remove the annotation of a parameter."""
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Remove the annotation of the result, and decorators that only save time or serve type checkers."""
        node.returns = None
        idle = ("lru_cache", "overload", "abstract")
        node.decorator_list = [each for each in node.decorator_list if not ast.unparse(each).startswith(idle)]
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST:
        """Remove code that only type checkers execute."""
        if ast.unparse(node.test) == "TYPE_CHECKING":
            return ast.Pass()
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """Remove docstrings."""
        return ast.Pass() if isinstance(node.value, ast.Constant) else self.generic_visit(node)


def meaning(source: str) -> str:
    """Return a value that is equal for two modules that differ only in code without effect."""
    return ast.dump(Meaning().visit(ast.parse(source)))


def mutationsOf(source: str) -> dict[tuple[int, int], list[tuple[str, int]]]:
    """Return the mutations (operator and occurrence) that cosmic-ray knows for each position in a module."""
    import parso.python.tree  # noqa: F401  (cosmic-ray's own order of imports is circular)
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.operators.provider import OperatorProvider

    provider = OperatorProvider()
    nodes = list(ast_nodes(get_ast(source)))
    found: dict[tuple[int, int], list[tuple[str, int]]] = defaultdict(list)
    for name in sorted(provider):
        # Identity and equality are the same for None and members of enumerations.
        if provider[name].arguments() or name.endswith(("_Is_Eq", "_Eq_Is", "_IsNot_NotEq", "_NotEq_IsNot")):
            continue
        positions = (start for node in nodes for start, _ in provider[name]().mutation_positions(node))
        for occurrence, start in enumerate(positions):
            found[start].append((name, occurrence))
    return found


def drawn(
    chooser: random.Random, group: str, paths: list[str], number: int, kept: list[Mutant]
) -> Iterator[Mutant]:
    """Return additional mutants of some modules: random positions, and one of the mutations of each."""
    import parso.python.tree  # noqa: F401
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.operators.provider import OperatorProvider

    provider = OperatorProvider()
    sources = {path: (CHECKOUT / path).read_text() for path in paths}
    found = {path: mutationsOf(source) for path, source in sources.items()}
    places = [(path, start) for path in paths for start in sorted(found[path])]
    edits: set[tuple[str, int]] = set()  # characters changed: mutants are later applied together
    for mutant in kept:
        edits |= mutant.characters(sources[mutant.path])
    for path, start in chooser.sample(places, len(places)):
        if not number:
            break
        operator, occurrence = chooser.choice(found[path][start])
        code = mutate_code(sources[path], provider[operator](), occurrence)
        if code is None or not compiles(code) or meaning(code) == meaning(sources[path]):
            continue
        lines, changed = sources[path].splitlines(keepends=True), code.splitlines(keepends=True)
        first, endBefore, endAfter = difference(lines, changed)
        texts = "".join(lines[first:endBefore]), "".join(changed[first:endAfter])
        mutant = Mutant(group, path, first + 1, operator, occurrence, *texts)
        assert mutated(sources[path], [mutant]) == code
        characters = mutant.characters(sources[path])
        if not characters & edits:
            edits |= characters
            number -= 1
            yield mutant


def draw(seed: int) -> list[Mutant]:
    """Choose mutants of all groups."""
    chooser = random.Random(seed)
    mutants = [list(drawn(chooser, name, group.paths, PER_GROUP, [])) for name, group in GROUPS.items()]
    return sorted(chain.from_iterable(mutants), key=order)


def redraw(seed: int, mutants: list[Mutant]) -> list[Mutant]:
    """Replace each mutant that is no longer applicable by another one of its module; others keep results."""
    chooser, result = random.Random(seed), []
    for (group, path), each in groupby(
        sorted(mutants, key=order), lambda mutant: (mutant.group, mutant.path)
    ):
        before, source, edits = list(each), (CHECKOUT / path).read_text(), set[tuple[str, int]]()
        kept = []
        for mutant in before:
            characters = mutant.characters(source)
            if characters and not characters & edits:
                edits |= characters
                mutant.line = source.count("\n", 0, min(characters)[1]) + 1
                kept.append(mutant)
        result += [*kept, *drawn(chooser, group, [path], len(before) - len(kept), kept)]
    return sorted(result, key=order)


def order(mutant: Mutant) -> tuple[int, str, int]:
    """Return the sort key of a mutant: group, module and line."""
    return list(GROUPS).index(mutant.group), mutant.path, mutant.line


def compiles(source: str) -> bool:
    """Return whether a source is valid Python."""
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True


# Running


@dataclass
class Test:
    """A test, its module, and its duration without mutants."""

    name: str
    module: str
    seconds: float

    @property
    def limit(self) -> float:
        """Return the seconds after which the test counts as hanging, on a busy machine."""
        return 6.0 + 5 * self.seconds


class WorkerProcess:
    """A L{testworker} whose modules are mutated."""

    def __init__(self, folder: str, environment: dict[str, str]) -> None:
        readEnd, writeEnd = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER), str(writeEnd), folder, str(CHECKOUT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[writeEnd],
            env=environment,
            start_new_session=True,
        )
        os.close(writeEnd)
        self._reports, self._buffer = readEnd, b""

    def close(self) -> None:
        """Kill the worker and the processes of its tests."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        os.close(self._reports)

    def run(self, module: str, tests: list[Test]) -> Iterator[tuple[Test, str]]:
        """Run tests of one module; yield each as it ends, with its outcome: C{timeout} if it hangs."""
        assert self._process.stdin is not None
        byName = {test.name: test for test in tests}
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"name": module, "only": list(byName)}).encode() + b"\n")
            self._process.stdin.flush()
        current = tests[0]
        limit = 60.0  # includes the time to load the module
        while True:
            report = self._next(limit)
            if isinstance(report, str):
                yield current, report
                return
            if report["event"] == "started":
                current = byName.pop(report["test"])
                limit = current.limit
            elif report["event"] == "ended":
                yield current, report["outcome"]
            elif report["event"] == "done":
                for each in byName.values():
                    yield each, "failed"  # the module does not have this test
                return

    def _next(self, limit: float) -> dict[str, Any] | str:
        deadline = time.monotonic() + limit
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._reports], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return "timeout"
            data = os.read(self._reports, 1 << 16)
            if not data:
                return "failed"
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        report: dict[str, Any] = json.loads(line)
        return report


def failing(mutants: list[Mutant], tests: list[Test], loaded: set[str], stop: bool = False) -> dict[str, str]:
    """
    Run tests with all these mutants in effect.

    @param loaded: receives the names of the mutated modules that were imported.
    @return: outcomes of the tests that fail, or of the first that does.
    """
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="txrdma-mutants-") as folder:
        os.chmod(folder, 0o755)  # some tests start servers as other users
        hooks = Path(folder, "hooks")
        hooks.mkdir()
        (hooks / "sitecustomize.py").write_text(_HOOK)
        Path(folder, "loaded").mkdir()
        for path in {mutant.path for mutant in mutants}:
            each = [mutant for mutant in mutants if mutant.path == path]
            (hooks / moduleName(path)).write_text(mutated((CHECKOUT / path).read_text(), each))
        paths = os.pathsep.join([str(hooks), str(CHECKOUT)])
        environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": paths, "TMPDIR": folder}
        remaining = list(tests)
        while remaining and not (stop and failures):
            worker = WorkerProcess(folder, environment)
            try:
                for test, outcome in outcomes(worker, remaining):
                    remaining.remove(test)
                    if outcome in ("failed", "timeout"):
                        failures[test.name] = outcome
                        if stop:
                            break
            finally:
                worker.close()
        loaded.update(os.listdir(Path(folder, "loaded")))
    return failures


def moduleName(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def outcomes(worker: WorkerProcess, tests: list[Test]) -> Iterator[tuple[Test, str]]:
    """Yield outcomes of tests in one worker, until it ends."""
    for module, each in groupby(list(tests), lambda test: test.module):
        chosen = list(each)
        ended = 0
        for test, outcome in worker.run(module, chosen):
            ended += 1
            yield test, outcome
        if ended < len(chosen) or outcome == "timeout":
            return


@dataclass
class Measurement:
    """Finds for each mutant a test that kills it."""

    mutants: list[Mutant]
    tests: dict[str, Test]
    result: str
    jobs: int
    killers: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """How often each test killed a mutant of a module, by the module's path."""
    loaded: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The mutated modules that each module of tests imports, also in other processes."""

    def alone(self) -> None:
        """Run each mutant against the test that killed it last, and the tests close to it."""
        earlier = {}
        for mutant in self.mutants:
            earlier[id(mutant)] = {shortName(name) for name in (mutant.full, mutant.fast) if name}
            setattr(mutant, self.result, None)
        near = {name: self._near(group) for name, group in GROUPS.items()}
        with ThreadPoolExecutor(self.jobs) as pool:
            for broken in pool.map(lambda tests: failing([], tests, set()), near.values()):
                self._exclude(broken)

            def one(mutant: Mutant) -> None:
                before = [test for test in self.tests.values() if shortName(test.name) in earlier[id(mutant)]]
                usual = [self.tests[name] for name, _ in self.killers[mutant.path].most_common(20)]
                close = [test for test in near[mutant.group] if test.name in self.tests]
                self._tried(mutant, list({test.name: test for test in [*before, *usual, *close]}.values()))

            list(pool.map(one, self.mutants))

    def together(self, tests: list[Test]) -> None:
        """Run tests with all survivors in effect, then each survivor against those that it makes fail."""
        print(f"{len(self._survivors())} mutants are left for {len(tests)} tests.", flush=True)
        with ThreadPoolExecutor(self.jobs) as pool:
            failed = self._failing(pool, self._survivors(), tests)
            self._exclude(test.name for test in self._failing(pool, [], failed))
            self.divide(pool, [test for test in failed if test.name in self.tests])

    def divide(self, pool: ThreadPoolExecutor, failed: list[Test]) -> None:
        """Run each survivor against tests that fail with all: quick ones first, then all that still fail."""
        print(f"{len(failed)} of them fail.", flush=True)
        failed.sort(key=lambda test: test.seconds)
        suspects = {}
        for name, group in GROUPS.items():
            modules = {moduleName(path) for path in group.paths}
            suspects[name] = [test for test in failed if modules & self.loaded[test.module]]
        sets = [
            ([mutant for mutant in self._survivors() if mutant.group == name], tests)
            for name, tests in suspects.items()
        ]
        while sets:
            sets = [(each, self._failing(pool, each, tests)) for each, tests in sets if each and tests]
            pairs = [(mutant, each, tests) for each, tests in sets for mutant in each]
            chosen = [
                tests if len(each) == 1 else affordable(tests, NEAR_SECONDS) for _, each, tests in pairs
            ]
            list(pool.map(self._tried, [mutant for mutant, _, _ in pairs], chosen))
            left = [
                ([mutant for mutant in each if mutant in self._survivors()], tests)
                for each, tests in sets
                if len(each) > 1
            ]
            # Every other one: neighbours are often parts of one condition, and make tests fail only together.
            sets = [half for each, tests in left for half in ((each[::2], tests), (each[1::2], tests))]

    def _survivors(self) -> list[Mutant]:
        return [mutant for mutant in self.mutants if getattr(mutant, self.result) is None]

    def _failing(self, pool: ThreadPoolExecutor, mutants: list[Mutant], tests: list[Test]) -> list[Test]:
        """Return those of many tests that fail with these mutants; several modules run at a time."""
        modules = defaultdict(list)
        for test in tests:
            modules[test.module].append(test)
        longestFirst = sorted(modules.values(), key=lambda each: -sum(test.seconds for test in each))
        failures = pool.map(lambda each: failing(mutants, each, self.loaded[each[0].module]), longestFirst)
        names = set(chain.from_iterable(failures))
        return [test for test in tests if test.name in names]

    def _near(self, group: Group) -> list[Test]:
        modules = tuple(f".{module}" for module in group.near.split())
        close = [test for test in self.tests.values() if test.module.endswith(modules)]
        return affordable(sorted(close, key=lambda test: test.seconds), NEAR_SECONDS)

    def _exclude(self, broken: Iterable[str]) -> None:
        for name in broken:
            if self.tests.pop(name, None):
                print(f"Excluded, since it fails without mutants: {name}", flush=True)

    def _tried(self, mutant: Mutant, tests: list[Test]) -> None:
        """Run tests with one mutant until one of them kills it, and again when it is run once more."""
        while failures := failing([mutant], tests, set(), stop=True):
            ((name, outcome),) = failures.items()
            if failing([mutant], [self.tests[name]], set()):
                setattr(mutant, self.result, f"timeout: {name}" if outcome == "timeout" else name)
                self.killers[mutant.path][name] += 1
                break
            tests = [test for test in tests if test.name != name]
        print(f"{mutant.path}:{mutant.line} {getattr(mutant, self.result)}", flush=True)


def affordable(tests: list[Test], seconds: float) -> list[Test]:
    """Return the first of these tests, up to this total duration."""
    ends = accumulate(test.seconds for test in tests)
    return [test for test, end in zip(tests, ends, strict=True) if end <= seconds]


def shortName(name: str) -> str:
    """Return module, class and method of a test, which are unchanged when a package of tests moves."""
    return ".".join(name.split(".")[-3:])


# Reports


def knownTests(names: list[str], isFast: bool) -> dict[str, Test]:
    """
    Return the tests in some packages, modules or classes, by the results of the last run.

    @param isFast: whether to leave out those of which C{make test} runs only a sample.
    """
    tests = {}
    for line in TESTED.read_text().splitlines():
        result = json.loads(line)
        if isFast and result["reason"]:
            continue
        if any(result["test"].startswith(each + ".") for each in names):
            tests[result["test"]] = Test(result["test"], result["module"], result["seconds"])
    return tests


def load() -> list[Mutant]:
    """Return the stored mutants."""
    return [Mutant(**each) for each in json.loads(RESULTS.read_text())["mutants"]]


def save(mutants: list[Mutant], seed: int) -> None:
    """Store the mutants, one per line."""
    lines = ",\n".join(json.dumps(asdict(mutant)) for mutant in mutants)
    RESULTS.write_text(f'{{"seed": {seed}, "mutants": [\n{lines}\n]}}\n')


def report(mutants: list[Mutant]) -> int:
    """Print the killed mutants, and those that the fast suite misses; return the exit status."""
    print(f"{'':16}{'mutants':>8}{'full':>8}{'fast':>8}{'both':>8}")
    for name in [*GROUPS, ""]:
        each = [mutant for mutant in mutants if not name or mutant.group == name]
        full, fast = ([one for one in each if getattr(one, suite)] for suite in ("full", "fast"))
        counts = len(each), len(full), len(fast), sum(one in fast for one in full)
        print(f"{name or 'total':16}", *(f"{count:7}" for count in counts))
    missed = [mutant for mutant in mutants if mutant.full and not mutant.fast]
    for mutant in missed:
        print(
            f"\n{mutant.path}:{mutant.line} is killed by {mutant.full} only\n-{mutant.before}+{mutant.after}",
            end="",
        )
    required = sum(bool(mutant.full) for mutant in mutants)
    share = 1 - len(missed) / max(required, 1)
    print(f"\nThe fast suite kills {share:.1%} of the {required} mutants that the full suite kills.")
    return int(share < REQUIRED)


def main() -> int:
    """Draw mutants, run them, or report."""
    parser = argparse.ArgumentParser(description="Measure how many mutants the tests kill.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("draw", help="choose mutants, and forget results")
    commands.add_parser("redraw", help="choose others in place of those whose lines have been rewritten")
    commands.add_parser("report", help="print the stored results")
    run = commands.add_parser("run", help="find a test that kills each mutant")
    run.add_argument("result", choices=["full", "fast"], help="where to store the result")
    run.add_argument("names", nargs="+", help="packages, modules or classes of tests")
    run.add_argument("--jobs", type=int, default=os.cpu_count() or 2, help="processes")
    run.add_argument("--only", default="", help="a group, a path, or a part of one")
    options = parser.parse_args()
    if options.command == "draw":
        save(draw(SEED), SEED)
        return 0
    mutants = load()
    if options.command == "redraw":
        mutants = redraw(SEED, mutants)
        save(mutants, SEED)
    if options.command == "run":
        allowDescriptors()
        # A script in the background starts with SIGINT ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        chosen = [mutant for mutant in mutants if options.only in f"{mutant.group} {mutant.path}"]
        tests = knownTests(options.names, isFast=options.result == "fast")
        measurement = Measurement(chosen, tests, options.result, options.jobs)
        measurement.alone()
        save(mutants, SEED)
        for isSlow in (False, True):
            measurement.together(
                [test for test in measurement.tests.values() if (test.seconds > SLOW_SECONDS) is isSlow]
            )
            save(mutants, SEED)
    return report(mutants)


if __name__ == "__main__":
    sys.exit(main())
