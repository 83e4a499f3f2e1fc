"""Measure management datagrams: sweeps beside C{ibnetdiscover}, calls, tables, structures, memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from benchmarks.madfabric import BenchFabric, cores, missing, Ran
from benchmarks.measuring import Case, MeasurementFailed, Outcome, TIMEOUT_SECONDS
from benchmarks.orders import Orders
from benchmarks.report import show, spread
from benchmarks.results import Section, section, shortly

SWEPT: Final = 10_368
"""Number of hosts of the fat tree that is swept."""

_BROWSERS: Final = 500
"""Number of browsers that show a page of the monitor at the same time."""

SETTINGS: Final = ("default", "-o 8", "-o 32", "-o 128")
"""Options of C{ibnetdiscover}; its default is C{-o 2}."""

HOSTS_OF_A_LEAF: Final = 18
MOST_ROUNDS: Final = 5
MILLION: Final = 1_000_000


@dataclass
class Part:
    """
    One measurement.

    @ivar name: its name in L{PARTS}.
    @ivar about: paragraphs of the page before its rows; C{lines} are a table after them.
    @ivar why: the reason why nothing was measured.
    @ivar isFailed: whether that is a failure, not a choice.
    """

    title: str
    tested: str
    reference: str
    outcomes: list[Outcome] = field(default_factory=list)
    about: str = ""
    lines: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    why: str = ""
    isFailed: bool = False
    name: str = ""

    def result(self) -> Section:
        """Return the section for JSON."""
        names = (self.name, self.title, self.outcomes, self.tested, self.reference)
        return section(*names, self.details, self.why, self.about, self.lines, self.isFailed)


def _case(name: str, title: str, unit: str, **reaches: float | None) -> Case:
    return Case(name, title, "", unit, tested={}, reference=None, orders={}, mode="", **reaches)  # type: ignore[arg-type]  # all of reaches are numbers


def measured(scenario: str, environment: Mapping[str, str] | None = None, **orders: Any) -> dict[str, Any]:
    """
    Run one process on the second core, and return its result.

    @raise MeasurementFailed: the process failed.
    """
    sent: Orders = {"core": cores()[1], **orders}
    command = [sys.executable, "-m", "benchmarks.madends", scenario, json.dumps(sent)]
    done = subprocess.run(
        command,
        env=dict(environment or os.environ),
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT_SECONDS,  # of monitors of 50,000 hosts
    )
    if done.returncode:
        raise MeasurementFailed(f"{scenario}: {done.stderr.strip()[-300:]}")
    reported: dict[str, Any] = json.loads(done.stdout)
    return reported


# sweeps


def sweeps(rounds: int, quick: bool) -> Part:
    """C{txrdma discover} and C{ibnetdiscover} in alternating runs, each round from another host."""
    hosts = 1_024 if quick else SWEPT
    part = Part(f"A sweep of {hosts:,} hosts", "txrdma discover", "ibnetdiscover")
    part.why = missing()
    if part.why:
        return part
    tested: list[Ran] = []
    reference: dict[str, list[Ran]] = {setting: [] for setting in SETTINGS}
    with BenchFabric(hosts) as fabric:
        sent = _counted(fabric)
        for turn in range(rounds):
            host = fabric.hosts[(turn + 1) * len(fabric.hosts) // (rounds + 1)]
            for setting in SETTINGS:
                reference[setting].append(fabric.reference(_words(setting), host))
            tested.append(fabric.tested(host))
            _sameFound(tested[-1].output, reference[SETTINGS[0]][-1].output)
    best = min(SETTINGS, key=lambda setting: median(ran.seconds for ran in reference[setting]))
    ourSeconds = [ran.seconds for ran in tested]
    for name, setting, reach in (("best", best, 0.6), ("default", SETTINGS[0], None)):
        description = f"wall time, start-up included; ibnetdiscover {setting}" + (
            ", its best" * (name == "best")
        )
        case = _case(f"mad-sweep-{name}", description, "s", atMost=reach)
        part.outcomes.append(Outcome(case, ourSeconds, [ran.seconds for ran in reference[setting]]))
    case = _case("mad-sweep-cpu", f"CPU time; ibnetdiscover {best}", "s")
    part.outcomes.append(Outcome(case, [ran.cpu for ran in tested], [ran.cpu for ran in reference[best]]))
    case = _case("mad-sweep-sent", "datagrams sent", "MADs", atMost=1.0)
    part.outcomes.append(Outcome(case, [float(sent.pop("tested"))], [float(min(sent.values()))]))
    seconds = {setting: [ran.seconds for ran in runs] for setting, runs in reference.items()}
    texts = ", ".join(f"{setting} {spread(values)} s" for setting, values in seconds.items())
    part.about = (
        f"ibsim runs on one core, the command on the other; {rounds} alternating rounds, each from "
        "another host. Both write the same listing of the fabric, whose nodes and links are compared. "
        "Datagrams are those sent by the host's port, counted by ibsim. txrdma's modules have compiled "
        "bytecode, as after an installation by pip.\n\n"
        f"`ibnetdiscover` by its settings: {texts}."
    )
    part.details = {"settings": seconds}
    return part


def _words(setting: str) -> list[str]:
    return [] if setting == SETTINGS[0] else setting.split()


def _counted(fabric: BenchFabric) -> dict[str, int]:
    """Return the number of datagrams that each sends, without those that read the counter."""
    host = fabric.hosts[0]
    fabric.name(host)
    before = fabric.sent(host)
    asking = fabric.sent(host) - before
    found = {}
    for setting in (*SETTINGS, "tested"):
        before = fabric.sent(host)
        _ = fabric.tested(host) if setting == "tested" else fabric.reference(_words(setting), host)
        found[setting] = fabric.sent(host) - before - asking
    return found


def _sameFound(tested: str, reference: str) -> None:
    """Check that two listings have the same nodes and links in any order."""
    one, other = (
        sorted(line.split("#")[0].strip() for line in text.splitlines() if line[:1] in ("S", "C", "R", "["))
        for text in (tested, reference)
    )
    if one != other:
        raise MeasurementFailed(
            f"what was found differs: {len(one)} nodes and links, {len(other)} by the reference"
        )


# Calls.


def rates(rounds: int, quick: bool) -> Part:
    """Calls per second, with and without ibsim."""
    part = Part("Calls per second", "agent", "")
    part.about = (
        "`SubnGet(NodeInfo)` by `MADAgent`, each a Deferred that fires with the decoded answer, 128 "
        "outstanding, on directed routes to 37 nodes in turn. ibsim runs on one core and the agent on the "
        "other, so ibsim may be the limit. Prepared answers come from a port in the agent's process, in the "
        "next reactor iteration, and show the limit of the agent."
    )
    orders: dict[str, Any] = {"outstanding": 128, "seconds": 0.5 if quick else 2.0, "reactor": "epoll"}
    inside = Outcome(_case("mad-rate-ready", "prepared answers", "/s", leastValue=150_000))
    if missing():
        part.about += f"\n\nNot measured with ibsim: {missing()}."
        inside.tested = [measured("rate", **orders)["value"] for _ in range(rounds)]
        part.outcomes = [inside]
        return part
    outside = Outcome(_case("mad-rate-ibsim", "over ibsim", "/s", leastValue=150_000))
    part.outcomes = [outside, inside]
    costs = []
    with BenchFabric(1_024) as fabric:
        for turn in range(rounds):
            host = fabric.hosts[HOSTS_OF_A_LEAF * turn]  # the first node there is port 1 of its leaf
            costs.append(measured("rate", fabric.environment(host), device="ibsim", **orders))
            outside.tested.append(costs[-1]["value"])
            inside.tested.append(measured("rate", **orders)["value"])
    cpu, busy = (median(each[key] for each in costs) for key in ("cpu", "busy"))
    part.about += (
        f"\n\nOver ibsim a call costs the agent's process {cpu * 1e6:.2f} us of CPU time; it is busy for "
        f"{busy:.0%} of the time."
    )
    part.details = {"ibsim": costs}
    return part


# tables


def tables(rounds: int, quick: bool) -> Part:
    """Tables of path records."""
    records = 10_000
    part = Part("A table of subnet administration", "agent", "")
    case = _case("mad-table", f"{records:,} path records", "s", mostValue=0.5)
    found = [measured("table", records=records) for _ in range(rounds)]
    part.outcomes = [Outcome(case, [reported["value"] for reported in found])]
    part.about = (
        "`SubnAdmGetTable(PathRecord)` by `MADAgent`, from the call to the list of instances: "
        f"{found[0]['segments']:,} segments by RMPP, acknowledged window by window, from a port in the same "
        "process that has prepared them."
    )
    return part


# latency


def latencies(rounds: int, quick: bool) -> Part:
    """Sweeps of a simulated fabric with delayed answers."""
    part = Part("Limited by latency", "sweep", "limit")
    hosts, fewer = (128, 128) if quick else (SWEPT, 1_024)
    for outstanding in (16, 64, 256):
        part.outcomes.append(_latency(outstanding, 1, hosts, False, 1))
    for outstanding, milliseconds in ((16, 1), (64, 1), (256, 1), (64, 10), (256, 10)):
        part.outcomes.append(_latency(outstanding, milliseconds, fewer, True, min(rounds, 3)))
    part.about = (
        "A sweep of the simulated fabric with a latency from each request to its answer. The limit is "
        "the number of datagrams sent, times the latency, divided by the maximum number outstanding. "
        "Computing takes no simulated time, so all runs are the same. In real time sweep and fabric "
        "share one process and one core, which is the limit if it has no idle time (100% CPU). Real "
        f"times are of {min(rounds, 3)} runs."
    )
    return part


def _latency(outstanding: int, milliseconds: int, hosts: int, isReal: bool, runs: int) -> Outcome:
    orders: dict[str, Any] = {"latency": milliseconds / 1000, "outstanding": outstanding, "real": isReal}
    found = [measured("sweep", hosts=hosts, **orders) for _ in range(runs)]
    time = f"real time ({median(each['busy'] for each in found):.0%} CPU)" if isReal else "simulated time"
    title = f"{outstanding} outstanding, {milliseconds} ms, {hosts:,} hosts, {time}"
    name = f"mad-latency-{outstanding}-{milliseconds}{'-real' if isReal else ''}"
    case = _case(name, title, "s", atMost=1.15)
    return Outcome(case, [reported["value"] for reported in found], [reported["limit"] for reported in found])


# structures


def codecs(rounds: int, quick: bool) -> Part:
    """Each structure, encoded and decoded."""
    found: dict[str, dict[str, float]] = measured("codecs", seconds=0.001 if quick else 0.004)["value"]
    part = Part("Structures", "", "")
    part.details = {"structures": found}
    part.about = (
        "Microseconds to decode and to encode a structure with all its fields, from random bytes; frames "
        "are whole datagrams. One run."
    )
    part.lines = [
        "| | bytes | fields | decode, us | encode, us |",
        "|---|---|---|---|---|",
        *(
            f"| {name} | {each['bytes']} | {each['fields']} | {each['decode']:.2f} | {each['encode']:.2f} |"
            for name, each in found.items()
        ),
    ]
    return part


# memory


def memory(rounds: int, quick: bool) -> Part:
    """Memory of the model of a fabric."""
    hosts = 1_024 if quick else SWEPT
    part = Part("Memory", "model", "")
    part.why = missing()
    if part.why:
        return part
    with BenchFabric(hosts) as fabric:
        environment = fabric.environment(fabric.hosts[0])
        objects, process = (
            measured("memory", environment, device="ibsim", traced=isTraced) for isTraced in (True, False)
        )
    rows = (
        ("objects", "its objects", objects["value"]),
        ("most", "peak during the sweep", objects["most"]),
        ("process", "growth of the process", process["value"]),
    )
    for name, title, taken in rows:
        part.outcomes.append(Outcome(_case(f"mad-memory-{name}", title, "bytes"), [taken]))
    part.details = {"objects": objects, "process": process}
    least, largest = (shortly(reported["value"] * MILLION / 2**20) for reported in (objects, process))
    part.about = (
        f"Memory of a `Fabric` of {hosts:,} hosts after a sweep: bytes per port, for "
        f"{objects['ports']:,} ports and {objects['nodes']:,} nodes. Ports of hosts and all ports of "
        f"switches, including port 0, are counted. `tracemalloc` measures objects in a separate run. The "
        f"process retains some memory of the sweep for a while. A million such ports would take "
        f"{least} MiB, and a process that sweeps them would grow by {largest} MiB."
    )
    return part


# the monitor


def monitor(rounds: int, quick: bool) -> Part:
    """Work of the fabric monitor: reading counters, text for Prometheus, history."""
    part = Part("The fabric monitor", "monitor", "")
    outcomes = []
    about = []
    hosts: Sequence[tuple[int, float | None]] = ((900, 32e-6),) if quick else ((900, 32e-6), (SWEPT, None))
    for count, most in hosts:
        found = [
            measured("monitor-reading", hosts=count, rounds=3, reactor="epoll")
            for _ in range(1 if count == SWEPT else rounds)
        ]
        read = found[0]
        name = f"mad-monitor-{count}"
        title = f"one reading of {read['ports']:,}, CPU"
        outcomes.append(Outcome(_case(name, title, "s", mostValue=most), [one["value"] for one in found]))
        share = median(one["value"] for one in found) * read["ports"]
        about.append(
            f"{read['nodes']:,} nodes have {read['ports']:,} ports with links: a round takes {share:.2f} "
            f"s of CPU time, which is {share / 10:.1%} of a core at intervals of 10 s, {share:.0%} at 1 s."
        )
        if count == hosts[0][0]:
            case = _case("mad-monitor-text", f"text of {read['series']:,} series", "s", mostValue=0.02)
            outcomes.append(Outcome(case, [one["text"] for one in found]))
    days = 1 if quick else 7
    found = [measured("monitor-history", days=days, rounds=10) for _ in range(1 if quick else min(rounds, 3))]
    case = _case("mad-monitor-history", f"history of {days} days, one counter of one port by minutes", "s")
    outcomes.append(Outcome(case, [one["value"] for one in found]))
    runs: list[tuple[int, int, float, float | None, int]]
    runs = [(900, 48, 10.0, None, 0), (900, 48, 1.0, None, 20 if quick else 0)]
    runs += [] if quick else [(SWEPT, 36, 10.0, 1.0, browsers) for browsers in (0, _BROWSERS)]
    for count, radix, interval, reach, browsers in runs:
        orders: Orders = {"hosts": count, "radix": radix, "interval": interval, "rounds": 3}
        if browsers:  # busy, so that their process is on the other core
            orders |= {"browsers": browsers, "busy": True}
        ran = measured("monitor-running", None, reactor="epoll", **orders)
        many = f" with {browsers} browsers" if browsers else ""
        title = f"{count:,} hosts at {interval:g} s{many}, share of a core"
        name = f"mad-monitor-running-{count}-{interval:g}" + ("-browsers" if browsers else "")
        outcomes.append(Outcome(_case(name, title, "cores", mostValue=reach), [ran["value"]]))
        if browsers:
            about.append(_ofBrowsers(count, browsers, ran))
            continue
        about.append(
            f"With {count:,} hosts a round reads {ran['readings']:,.0f} ports in {ran['turn']:.2f} s; "
            f"{ran['overruns']} intervals of {interval:g} s were skipped, the first two rounds ended after "
            f"{ran['ready']:.0f} s, and the process was busy for {ran['busy']:.0%}."
        )
    sizes = [(1, 900, 48)] if quick else [(1, SWEPT, 36), (4, 12_500, 38)]
    outcomes += [_requests(*size, about) for size in sizes]
    part.outcomes = outcomes + _once(900, 48, 1 if quick else rounds, about)
    part.about = (
        "A reading is one datagram with all counters of a port: the request, a prepared answer from the same "
        "process, its verification, the port's meter, and thresholds. It does not include kernel and device. "
        "Between two texts the counters of data and packets grow, the others do not. The share of a core is "
        "that of a monitor with its history and of the simulated fabric in the same process; the simulation "
        "takes more than half. For one complete reading each program starts, sweeps, and reads the counters "
        "of all ports; that of txrdma is only the monitor's sweep and reader, without the imports of pages "
        "and history. " + " ".join(about)
    )
    return part


def _ofBrowsers(hosts: int, browsers: int, ran: dict[str, Any]) -> str:
    """Return what browsers wait for that show pages while a monitor runs."""
    seconds, iterations = sorted(ran["browsers"]["seconds"]), ran["iterations"]
    return (
        f"With {hosts:,} hosts and {browsers} browsers, half of which show the page of a switch or port that "
        f"no other one shows, pages of {ran['browsers']['bytes'] / 1e3:.0f} kB take {median(seconds):.2f} s, "
        f"the last one {seconds[-1]:.2f} s, when all of them request theirs after a round; a round takes "
        f"{ran['turn']:.2f} s, {iterations['over']} of {iterations['count']:,} reactor iterations took more "
        f"than 50 ms, and the process has {ran['memory'] / 1e6:.0f} MB of private memory."
    )


def _requests(fabrics: int, hosts: int, radix: int, about: list[str]) -> Outcome:
    """The longest reactor iteration of requests to monitors of several fabrics."""
    sizes: Orders = {"fabrics": fabrics, "hosts": hosts, "radix": radix, "browsers": _BROWSERS}
    # busy, so that the client's process is on the other core
    ran = measured("monitor-fabrics", None, reactor="epoll", busy=True, **sizes)
    paths, browsers, memory = ran["paths"], ran["browsers"], ran["memory"]
    every = f"{fabrics * hosts:,} hosts in {fabrics} fabrics" if fabrics > 1 else f"{hosts:,} hosts"
    about.append(
        f"With {every} ({ran['ports']:,} ports) a search of all ports takes {paths['search']['seconds']:.2f} "
        f"s, an order {paths['order']['seconds']:.2f} s, all metrics {paths['metrics']['seconds']:.1f} s "
        f"({paths['metrics']['bytes'] / 1e6:.0f} MB compressed), and one page for {_BROWSERS} browsers "
        f"{browsers['seconds']:.2f} s with a longest iteration of {browsers['longest'] * 1e3:.0f} ms. One "
        f"fabric has a history of {ran['states']:,} states of nodes and links in a year: an earlier topology "
        f"takes {paths['past']['cpu']:.1f} s of processor time, its differences from now "
        f"{paths['difference']['cpu']:.1f} s, a switch's page with what is lost without it, also of "
        f"{ran['jobs']:,} jobs of Slurm, {paths['switch']['cpu']:.1f} s. The "
        f"process has {memory['browsers'] / 1e6:.0f} MB of private memory then, of which "
        f"{memory['simulation'] / 1e6:.0f} MB are the simulated fabrics. "
        f"Iterations are measured by processor time, between rounds, without garbage collections, which take "
        f"up to {max(one['collection'] for one in (browsers, *paths.values())):.2f} s."
    )
    name = f"mad-monitor-fabrics-{fabrics * hosts}"
    case = _case(name, f"longest reactor iteration of a request, {every}", "s", mostValue=0.05)
    return Outcome(case, [ran["value"]])


def _once(hosts: int, radix: int, rounds: int, about: list[str]) -> list[Outcome]:
    """One complete reading and C{ibqueryerrors} for the same, in alternating runs."""
    why = missing()
    if why:
        about.append(f"{why}, so that nothing is compared with ibqueryerrors.")
        return []
    tested: dict[bool, list[Ran]] = {False: [], True: []}
    reference: list[Ran] = []
    sent: dict[bool, int] = {}
    with BenchFabric(hosts, radix, isManaged=True) as fabric:
        host = fabric.hosts[hosts // 2]
        # as commands about fabrics start, without TLS
        orders: dict[str, Any] = {"core": cores()[1], "outstanding": 128, "without": ["OpenSSL"]}
        for _ in range(rounds):
            before = fabric.sent(host)
            reference.append(fabric.run(["ibsim-run", "ibqueryerrors", "--counters", "--skip-sl"], host))
            between = fabric.sent(host)
            asked = between - before
            for hasErrors, ran in tested.items():
                words = json.dumps({**orders, "hasErrors": hasErrors})
                command = [sys.executable, "-m", "benchmarks.madends", "monitor-once", words]
                ran.append(fabric.run(command, host))
                before, between = between, fabric.sent(host)
                sent[hasErrors] = between - before
    read = json.loads(tested[False][-1].output)
    about.append(
        f"A complete reading covers {read['ports']:,} ports. ibqueryerrors --counters reads data "
        f"counters with {asked:,} datagrams; our first row reads the same with {sent[False]:,}, our second "
        f"row reads error counters as well with {sent[True]:,}. The sweep takes {read['sweep']:.2f} of our "
        f"{read['value']:.2f} s after start-up."
    )
    title = "one complete reading, start-up included; ibqueryerrors --counters"
    cases = {
        False: _case("mad-monitor-once", title, "s", atMost=0.6),
        True: _case("mad-monitor-once-errors", f"{title}, txrdma with errors", "s"),
    }
    them = [ran.seconds for ran in reference]
    return [Outcome(cases[one], [ran.seconds for ran in several], them) for one, several in tested.items()]


PARTS: Final[Mapping[str, Callable[[int, bool], Part]]] = {
    "mad-sweep": sweeps,
    "mad-rate": rates,
    "mad-table": tables,
    "mad-latency": latencies,
    "mad-codecs": codecs,
    "mad-memory": memory,
    "monitor": monitor,
}


def run(names: Sequence[str], rounds: int, quick: bool) -> list[Part]:
    """Run these measurements, and print each result."""
    parts = []
    for name in names:
        try:
            part = PARTS[name](rounds, quick)
        except (MeasurementFailed, subprocess.TimeoutExpired, OSError, RuntimeError) as error:
            part = Part(name, "", "", why=f"it failed: {error}", isFailed=True)
        part.name = name
        parts.append(part)
        if part.why:
            print(f"{name}: {part.why}", flush=True)
        for outcome in part.outcomes:
            show(outcome, part.reference)
        if not part.outcomes and not part.why:
            print("\n".join(part.lines), flush=True)
    return parts
