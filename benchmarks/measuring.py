"""Run the two processes of a measurement, alternating with those of another, and take medians."""

from __future__ import annotations

import compileall
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from threading import Timer
from typing import Any, Final

import txrdma
from benchmarks import peer_rdmacm
from benchmarks.controlgroups import limitedGroup, NoControlGroup
from benchmarks.orders import Orders
from benchmarks.privileges import unprivileged
from benchmarks.wires import wire, WireFailed

TIMEOUT_SECONDS = 300
LONGEST_SECONDS = 900
"""Maximum duration of one of the processes, also in an emulated guest."""

DASK_MODULE = "benchmarks.daskends"
"""Module that runs the processes of Dask."""

GROUP_MODULE = "benchmarks.btlgroup"
"""Module that runs as each member of a group."""

TORCH_MODULE = "benchmarks.torchends"
"""Module that runs as each process of C{torch.distributed}."""

_REACHES = ("atLeast", "atMost", "mostValue", "leastValue")


@dataclass(frozen=True)
class Case:
    """
    A case to measure, over two transports.

    @ivar tested: orders for the tested transport; C{reference}: for the one that it is compared with, if any.
        C{module} in them runs as both ends, and C{scenario} names what they do.
    @ivar atLeast: target of the ratio of both where more is better; C{atMost} where less is.
    @ivar mostValue: target of the value if nothing is compared; C{leastValue} where more is better.
    @ivar needs: a module without which the case cannot be measured.
    @ivar mode: prefix of the mode that must have carried txrdma's data.
    @ivar figure: which of the L{FIGURES} of its scenario the case is about, if there are several; for memory
        the end, C{client} or C{server}, or by default the end with more.
    @ivar also: cases about other figures of the same measurements, or of other transports in the same rounds.
    @ivar mostRounds: maximum number of rounds of a slow case; None is no limit.
    @ivar pairs: pairs of processes of each transport in a round, if the result of a pair depends on the
        processors that the scheduler chooses for it.
    """

    name: str
    title: str
    scenario: str
    unit: str
    tested: Orders
    reference: Orders | None
    orders: Orders
    atLeast: float | None = None
    atMost: float | None = None
    mostValue: float | None = None
    leastValue: float | None = None
    needs: str | None = None
    mode: str = "SMC-R"
    figure: str = ""
    also: tuple[Case, ...] = ()
    mostRounds: int | None = None
    pairs: int = 1

    @property
    def isMoreBetter(self) -> bool:
        """Whether a larger value is better: true of rates, false of times and memory."""
        return self.unit.endswith("/s")

    @property
    def reaches(self) -> dict[str, float]:
        """The targets of the case, by name."""
        every = ((name, getattr(self, name)) for name in _REACHES)
        return {name: value for name, value in every if value is not None}


@dataclass
class Outcome:
    """
    The values of a case, in its unit.

    @ivar isMissing: whether it failed because something is not installed, or not available on this machine.
    """

    case: Case
    tested: list[float] = field(default_factory=list)
    reference: list[float] = field(default_factory=list)
    mode: str = ""
    failure: str = ""
    isMissing: bool = False

    @property
    def ratio(self) -> float | None:
        """The ratio of the medians; None if either is missing, or that of the reference is 0."""
        if not self.tested or not self.reference or not median(self.reference):
            return None
        return median(self.tested) / median(self.reference)

    @property
    def reached(self) -> bool | None:
        """Whether the target is reached; None without a target."""
        case, ratio = self.case, self.ratio
        if case.atLeast is not None and ratio is not None:
            return ratio >= case.atLeast
        if case.atMost is not None and ratio is not None:
            return ratio <= case.atMost
        if case.mostValue is not None and self.tested:
            return median(self.tested) <= case.mostValue
        if case.leastValue is not None and self.tested:
            return median(self.tested) >= case.leastValue
        return None

    @property
    def reach(self) -> str:
        """The target, for people."""
        case = self.case
        if case.atLeast is not None:
            return f"{case.atLeast:g}x or more"
        if case.atMost is not None:
            return f"{case.atMost:g}x or less"
        if case.mostValue is not None:
            return f"{case.mostValue:g} {case.unit} or less"
        if case.leastValue is not None:
            least = f"{case.leastValue:,.0f}" if case.leastValue >= 100 else f"{case.leastValue:g}"
            return f"{least} {case.unit} or more"
        return "-"

    def asDict(self) -> dict[str, Any]:
        """Return the row for JSON."""
        return {
            "name": self.case.name,
            "title": self.case.title,
            "unit": self.case.unit,
            "mode": self.mode,
            "tested": self.tested,
            "reference": self.reference,
            "ratio": self.ratio,
            "isCompared": bool(self.reference) or self.case.reference is not None,
            "isMoreBetter": self.case.isMoreBetter,
            "reach": self.reach,
            "reaches": self.case.reaches,
            "reached": self.reached,
            "failure": self.failure,
            "isMissing": self.isMissing,
        }


class MeasurementFailed(Exception):
    """A process of a measurement failed."""


def haveBytecode() -> None:
    """Compile the bytecode of txrdma's modules as pip does, but of no tests: a checkout may have none."""
    compileall.compile_dir(Path(txrdma.__file__).parent, rx=re.compile("/txrdma/test/"), quiet=1)


_BUSY: Final = """
import os, threading

threading.Thread(target=lambda: (os.read(0, 1), os._exit(0))).start()
while True:
    pass
"""
"""CPU-bound program, which ends when the process that has its standard input ends, also by a signal."""


@contextmanager
def busyProcesses(count: int) -> Iterator[None]:
    """Run CPU-bound processes, which compete with the ends of a measurement for the processors."""
    command = [sys.executable, "-c", _BUSY]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _user(orders: Orders) -> list[str]:
    """Return the words before the command of a process with these orders, so that the right user runs it."""
    return unprivileged() if orders.get("isUnprivileged") else []


@contextmanager
def end(module: str, role: str, orders: Orders) -> Iterator[subprocess.Popen[str]]:
    """
    Start one of the two processes, and end it with the block.

    With C{namespace} in the orders it runs in that network namespace, otherwise with C{isUnprivileged}
    without privileges. It is killed after L{LONGEST_SECONDS}.
    """
    namespace = orders.get("namespace")
    inside = ["ip", "netns", "exec", namespace] if namespace else _user(orders)
    command = [*inside, sys.executable, "-m", module, role, json.dumps(orders)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    ending = Timer(LONGEST_SECONDS, process.kill)
    ending.start()
    try:
        yield process
    finally:
        ending.cancel()
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def resultOf(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the next line of a process."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise MeasurementFailed(f"a process ended with {process.wait()}")
    answer: dict[str, Any] = json.loads(line)
    return answer


def measure(
    orders: Orders,
    module: str = "benchmarks.ends",
    forServer: Orders | None = None,
    forClient: Orders | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """
    Measure once with two processes on two cores; return the results of client and server.

    With C{loss} in the orders the processes are at the ends of a L{wire} that loses this share of packets,
    and the client's result includes the wire's counters. With C{busy}, this number of CPU-bound processes
    runs beside them; with C{clients} there are several client processes; with C{limit}, server and clients
    together get only this share of one core. Then no process is bound to a core, and the client's result has
    the sum of the rates and the medians of other figures.

    @param forServer: further orders for the server; C{forClient} for the client.
    @raise NoControlGroup: the processor time of processes cannot be limited here.
    """
    first, second = sorted(os.sched_getaffinity(0))[:2]
    with ExitStack() as stack:
        atServer, atClient = {**orders, **(forServer or {})}, {**orders, **(forClient or {})}
        if loss := orders.get("loss"):
            try:
                lossy = stack.enter_context(wire(loss))
            except WireFailed as error:
                raise MeasurementFailed(str(error)) from error
            atServer["namespace"], atClient["namespace"] = lossy.far, lossy.near
        stack.enter_context(busyProcesses(orders.get("busy", 0)))
        limit = orders.get("limit")
        group = stack.enter_context(limitedGroup(limit)) if limit else None

        def start(role: str, orders: Orders) -> subprocess.Popen[str]:
            process = stack.enter_context(end(module, role, orders))
            if group is not None:
                group.write_text(str(process.pid))
            return process

        server = start("server", {**atServer, "core": first})
        port = resultOf(server)["port"]
        connect = orders.get("connect", "").format(port=port)
        where = {"core": second, "connect": connect, "port": port, "server": server.pid}
        clients = [start("client", {**atClient, **where}) for _ in range(orders.get("clients", 1))]
        result = together([resultOf(client) for client in clients])
        if loss:
            result = {**lossy.counted(), **result}
        assert server.stdin is not None
        server.stdin.close()
        server.stdin = None
        return result, resultOf(server)


def together(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Combine the results of several clients: the sum of their rates, and medians of other numbers."""
    first = results[0]
    if len(results) == 1:
        return first
    medians = {name: median(each[name] for each in results) for name in first if name not in ("mode", "rate")}
    return {**medians, "rate": sum(each["rate"] for each in results), "mode": first["mode"]}


def launcher() -> str | None:
    """Return the launcher of MPI from this Python environment or the system, or None."""
    return shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.defpath]))


_BY_TCP: Final = {
    "FI_PROVIDER": "tcp",
    "MPIR_CVAR_CH4_NETMOD": "ofi",
    "MPIR_CVAR_NOLOCAL": "1",
    "OMPI_MCA_btl": "tcp,self",
    "OMPI_MCA_pml": "ob1",
}
"""Environment in which MPICH and Open MPI use TCP although both ranks are on one host."""


def measureMPI(orders: Orders) -> dict[str, Any]:
    """
    Measure once with two ranks of MPI, or C{ranks} of the orders; return the result of rank 0.

    With C{isTCP} in the orders they use TCP, otherwise MPI's choice, which is shared memory.
    """
    return _measureRanks([launcher() or "mpiexec"], "benchmarks.peer_mpi", orders)


def measureGroup(orders: Orders) -> dict[str, Any]:
    """Measure once with processes that C{txrdma btl-run} starts; return the result of rank 0."""
    return _measureRanks([sys.executable, "-m", "txrdma", "btl-run"], orders["module"], orders)


def measureDask(orders: Orders) -> dict[str, Any]:
    """Measure once with processes of Dask."""
    return _measureProgram([sys.executable, "-m", DASK_MODULE], orders)


def _measureRanks(launcher: list[str], module: str, orders: Orders) -> dict[str, Any]:
    ranks = str(orders.get("ranks", 2))
    return _measureProgram([*launcher, "-n", ranks, sys.executable, "-m", module], orders)


def _measureProgram(command: list[str], orders: Orders) -> dict[str, Any]:
    """Run a program that measures by itself, with exit status C{status} of the orders; return its result."""
    done = subprocess.run(
        [*_user(orders), *command, json.dumps(orders)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        env={**os.environ, **(_BY_TCP if orders.get("isTCP") else {})},
    )
    if done.returncode != orders.get("status", 0):
        raise MeasurementFailed(f"{command[-1]} ended with {done.returncode}: {done.stderr.strip()[-200:]}")
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


FIGURES: Final[dict[str, Callable[[dict[str, Any]], float]]] = {
    "time": lambda client: client["value"] * 1e6,
    "rate": lambda client: client["rate"],
    "p50": lambda client: client["p50"] * 1e3,
    "p99": lambda client: client["p99"] * 1e3,
    "worst": lambda client: client["worst"] * 1e3,
    "uncut": lambda client: client["uncut"] * 1e3,
    "first": lambda client: client["first"] * 1e3,
    "later": lambda client: client["later"] * 1e3,
    "links": lambda client: client["links"] * 1e3,
    "most": lambda client: client["most"],
    "cpu": lambda client: client["cpu"] * 1e6,
    "bytes": lambda client: client["bytes"] / client["seconds"] / 1e6,
    "jain": lambda client: client["jain"],
    "peer": lambda client: client["peer"] / 1024,
    "resent": lambda client: client.get("resent", client["resentByTCP"]) / max(1, client["lost"]),
}
"""
Figures of scenarios that have several: functions of the client's result, in us of time or CPU, /s, MB/s,
KiB, shares, or ms.
"""


def value(case: Case, client: dict[str, Any], server: dict[str, Any]) -> float:
    """Return the value of one measurement in the unit of its case."""
    if case.figure in FIGURES:
        return float(FIGURES[case.figure](client))
    if case.scenario in ("throughput", "bulk", "senders", "daskShuffle"):
        return float(client["value"]) / 1e6
    if case.scenario in ("series", "connects", "burst", "crowd", "firstBytes", "messages", "daskTasks"):
        return float(client["value"])
    if case.scenario in ("roundTrip", "beside", "allreduce", "training"):
        return float(client["value"]) * 1e6
    if case.scenario in ("first", "imports", "death"):
        return float(client["value"]) * 1e3
    if case.scenario == "requests":
        return float((client["cpu"] + server["cpu"]) / client["bytes"] * 1e9)
    both = {"client": client, "server": server}
    ends = [end["memory"] for name, end in both.items() if case.figure in ("", name)]
    if case.scenario in ("many", "manyTLS"):
        return float(max((end["own"] + end["shared"]) / end["connections"] for end in ends)) / 1024
    beyond = [end["own"] + max(0, end["shared"] - end["rings"]) for end in ends]
    return float(max(count / end["connections"] for count, end in zip(beyond, ends, strict=True))) / 1024


def run(case: Case, rounds: int) -> list[Outcome]:
    """
    Measure both transports of cases in alternation, so that other load affects all of them.

    @return: an outcome for each figure.
    """
    outcomes = [Outcome(each) for each in (case, *case.also)]
    for outcome in outcomes:
        needs = outcome.case.needs
        if needs is not None and importlib.util.find_spec(needs) is None:
            outcome.failure, outcome.isMissing = f"{needs} is not installed", True
    transports: list[Orders] = []
    for outcome in outcomes:
        for transport in (outcome.case.reference, outcome.case.tested):
            if transport is not None and transport not in transports:
                transports.append(transport)
    for _ in range(case.pairs * min(rounds, case.mostRounds or rounds)):
        for transport in transports:
            orders = {"scenario": case.scenario, **case.orders, **transport}
            alive = (each for each in outcomes if not each.failure)
            concerned = [each for each in alive if transport in (each.case.tested, each.case.reference)]
            if not concerned:
                continue
            module = orders.get("module", "benchmarks.ends")
            client: dict[str, Any]
            server: dict[str, Any]
            try:
                if module == "benchmarks.peer_mpi":
                    client, server = measureMPI(orders), {}
                elif module in (GROUP_MODULE, TORCH_MODULE):
                    client, server = measureGroup(orders), {}
                elif module == DASK_MODULE:
                    client, server = measureDask(orders), {}
                elif module == peer_rdmacm.MODULE:
                    client, server = peer_rdmacm.measure(orders), {}
                else:
                    client, server = measure(orders, module)
            except NoControlGroup as error:
                for outcome in _failed(concerned, str(error)):
                    outcome.isMissing = True
                continue
            except (MeasurementFailed, peer_rdmacm.ProgramFailed, subprocess.TimeoutExpired) as error:
                _failed(concerned, str(error))
                continue
            for outcome in concerned:
                _take(outcome, transport, client, server)
    return outcomes


def _take(outcome: Outcome, transport: Orders, client: dict[str, Any], server: dict[str, Any]) -> None:
    """Add one measurement of a transport to an outcome of its case."""
    case = outcome.case
    if transport == case.reference:
        outcome.reference.append(value(case, client, server))
        return
    outcome.mode = client["mode"]
    if not outcome.mode.startswith(case.mode):
        outcome.failure = f"this was {outcome.mode}, not {case.mode}"
    outcome.tested.append(value(case, client, server))


def _failed(outcomes: list[Outcome], why: str) -> list[Outcome]:
    for outcome in outcomes:
        outcome.failure = why
    return outcomes
