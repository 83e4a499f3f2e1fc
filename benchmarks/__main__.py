"""
Measure, beside Twisted's TCP in the same run, and write C{docs/benchmarks.md}.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from twisted.python import usage

from benchmarks import box, mads
from benchmarks.ends import Orders
from benchmarks.measuring import Case, Outcome, run
from benchmarks.peers import peers
from benchmarks.report import areCoresCompiled, machine, madsMarkdown, markdown, show

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
MADS_PAGE = PAGE.with_name("benchmarks-management.md")

MIB = 1 << 20
GIB = 1 << 30

ENDPOINTS = {"listen": "tcp:0:interface=127.0.0.1", "connect": "tcp:127.0.0.1:{port}"}
TCP = ENDPOINTS
SMC = {"listen": "smc:0:interface=127.0.0.1", "connect": "smc:127.0.0.1:{port}"}
ROCE = {
    "listen": r"smc:0:interface=127.0.0.1:device=soft\:route=rocev2",
    "connect": r"smc:127.0.0.1:{port}:device=soft\:route=rocev2",
}


VERBS = {"module": "benchmarks.verbsends", "device": "soft", "reactor": "txrdma", **ENDPOINTS}
UDP = {"module": "benchmarks.peer_udp", "scenario": "udp"}


def bulk(operation: str, size: int) -> Orders:
    """Orders for bulk transfers over software RoCEv2."""
    return {
        **VERBS,
        "device": "soft:route=rocev2",
        "reactor": "epoll",
        "operation": operation,
        "write": size,
        "depth": max(4, min(64, 4 * MIB // size)),
    }


def verbs(quick: bool) -> list[Case]:
    """Queue pairs themselves."""
    total = 64 * MIB if quick else 512 * MIB
    found = [
        Case(
            f"bulk-{operation.lower().removeprefix('rdma_')}-{title.split()[0]}",
            f"RC {operation} over software RoCEv2 (UDP), {title} messages; TCP by 64 KiB writes",
            "bulk",
            "MB/s",
            ours=bulk(operation, size),
            theirs={**TCP, "scenario": "throughput", "write": 64 << 10},
            orders={"bytes": total},
            atLeast=0.5,
            mode="rocev2",
            needs="isal",
            isVerbs=True,
        )
        for operation in ("RDMA_WRITE", "SEND")
        for size, title in ((64 << 10, "64 KiB"), (MIB, "1 MiB"))
    ]
    found.append(
        Case(
            "bulk-udp",
            "RC RDMA_WRITE over software RoCEv2, 1 MiB messages; Twisted UDP by datagrams of 4 KiB",
            "bulk",
            "MB/s",
            ours=bulk("RDMA_WRITE", MIB),
            theirs=UDP,
            orders={"bytes": total},
            mode="rocev2",
            isVerbs=True,
        )
    )
    series = {"sizes": [64], "seconds": 0.3 if quick else 2.0, "depth": 256, "inline": 64}
    for name, title, transfer, measure in (
        ("send", "RC SEND, the sender's", "send", "bandwidth"),
        ("both", "RC SEND both ways, those of sends and of receives", "send", "bidirectional"),
        ("write", "RC RDMA WRITE", "write", "bandwidth"),
    ):
        found.append(
            Case(
                f"completions-{name}",
                f"completions through the reactor: shared memory, {title}",
                "series",
                "/s",
                ours=VERBS,
                theirs=None,
                orders={**series, "transfers": [transfer], "measures": [measure]},
                leastOfOurs=300_000,
                mode="shared-memory",
                isVerbs=True,
            )
        )
    return found


def cases(quick: bool) -> list[Case]:
    """Everything that is measured. Quick runs have too few bytes and turns to be trusted."""
    return streams(quick) + verbs(quick)


def streams(quick: bool) -> list[Case]:
    """Connections."""
    total = 256 * MIB if quick else 2 * GIB
    pings = 2_000 if quick else 20_000
    roce = total // 8
    connections = 200 if quick else 1_000
    return [
        Case(
            "throughput-64k",
            "throughput, 64 KiB writes",
            "throughput",
            "MB/s",
            ours=SMC,
            theirs=TCP,
            orders={"bytes": total, "write": 64 << 10},
            atLeast=3.0,
        ),
        Case(
            "throughput-1m",
            "throughput, 1 MiB writes",
            "throughput",
            "MB/s",
            ours=SMC,
            theirs=TCP,
            orders={"bytes": total, "write": MIB},
            atLeast=2.0,
        ),
        Case(
            "roundtrip",
            "64-byte round trip, epoll reactor",
            "roundTrip",
            "us",
            ours=SMC,
            theirs=TCP,
            orders={"size": 64, "count": pings},
            atMost=0.85,
        ),
        Case(
            "roundtrip-polling",
            "64-byte round trip, polling reactor (TCP with epoll)",
            "roundTrip",
            "us",
            ours={**SMC, "reactor": "txrdma"},
            theirs=TCP,
            orders={"size": 64, "count": pings},
            atMost=1 / 20,
        ),
        Case(
            "cpu",
            "CPU seconds per GB, both processes, 10 connections with requests and answers of 256 KiB",
            "requests",
            "s/GB",
            ours=SMC,
            theirs=TCP,
            orders={"bytes": total, "answer": 256 << 10, "parallel": 10},
            atMost=0.4,
        ),
        Case(
            "rocev2",
            "throughput over software RoCEv2 (UDP), 64 KiB writes, CRC by isal",
            "throughput",
            "MB/s",
            ours=ROCE,
            theirs=TCP,
            orders={"bytes": roce, "write": 64 << 10},
            atLeast=0.35,
            needs="isal",
        ),
        Case(
            "rocev2-zlib",
            "the same, CRC by zlib",
            "throughput",
            "MB/s",
            ours={**ROCE, "without": ["isal"]},
            theirs=TCP,
            orders={"bytes": roce, "write": 64 << 10},
        ),
        Case(
            "memory",
            f"memory of one end of an idle connection beyond its two ring buffers, at {connections:,}",
            "idle",
            "KiB",
            ours=SMC,
            theirs=TCP,
            orders={"connections": connections},
            mostOfOurs=16.0,
        ),
    ]


class Options(usage.Options):
    """The command line."""

    synopsis = "[options]"
    longdesc = "Measures beside Twisted's TCP in the same run, and writes docs/benchmarks.md."
    optFlags = [
        ["quick", "q", "Few bytes and few turns, no page written: to see that it works."],
        ["list", "l", "Tell the names."],
        ["no-peers", None, "Leave out what is not Twisted."],
        ["no-box", None, "Boot no guest to compare with the kernel's rxe."],
        ["no-mads", None, "Leave out management datagrams."],
        ["mads", "m", "Management datagrams alone, and their page."],
    ]
    optParameters = [
        ["rounds", "r", None, "How often each is measured, in turns. Default: 7, with --quick 3.", int],
        ["json", "j", None, "Write all single results there as well."],
        ["page", "p", str(PAGE), "Where the page is written."],
        ["mads-page", None, str(MADS_PAGE), "Where that of management datagrams is written."],
    ]

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of Twisted's
        self["only"] = []

    def opt_only(self, name: str) -> None:
        """Measure only this one; may be repeated. No page is written."""
        self["only"].append(name)

    opt_o = opt_only

    def postOptions(self) -> None:
        """Defaults that depend, and names that are none."""
        self["rounds"] = self["rounds"] or (3 if self["quick"] else 7)
        names = {case.name for case in cases(False)} | mads.PARTS.keys()
        for name in self["only"]:
            if name not in names:
                raise usage.UsageError(f"--only {name} is none of {', '.join(sorted(names))}")


def chosen(options: Options) -> tuple[list[Case], list[str]]:
    """What is to be measured: of all but management datagrams, and the names of their parts."""
    if options["mads"]:
        return [], list(mads.PARTS)
    only, found = options["only"], cases(options["quick"])
    if only:
        return [case for case in found if case.name in only], [name for name in mads.PARTS if name in only]
    return found, [] if options["no-mads"] or areCoresCompiled() else list(mads.PARTS)


def main(arguments: list[str]) -> int:
    """The command."""
    options = Options()
    try:
        options.parseOptions(arguments)  # type: ignore[no-untyped-call]  # of Twisted's
    except usage.UsageError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    measured, parts = chosen(options)
    if options["list"]:
        print("\n".join([*(case.name for case in measured), *parts]))
        return 0
    if len(os.sched_getaffinity(0)) < 2:
        print("benchmarks: two processes need two cores", file=sys.stderr)
        return 1
    rounds, quick = options["rounds"], options["quick"]
    isWhole = not options["only"] and not options["mads"]
    outcomes: list[Outcome] = []
    for case in measured:
        outcomes.append(run(case, rounds))
        show(outcomes[-1])
    others = [] if options["no-peers"] or not isWhole else peers(rounds, quick)
    inBox, why = None, "it was left out"
    if not options["no-box"] and isWhole:
        inBox, why = box.measure(1, 0.2) if quick else box.measure(3, 1.0)
    about = box.section(inBox, why)
    if isWhole:
        print("\n".join(about), flush=True)
    found = mads.run(parts, min(rounds, mads.MOST_ROUNDS), quick)
    if options["json"]:
        results = {
            "machine": machine(),
            "cases": [outcome.asDict() for outcome in outcomes],
            "peers": [peer.asDict() for peer in others],
            "box": inBox,
            "mads": [part.asDict() for part in found],
        }
        Path(options["json"]).write_text(json.dumps(results, indent=2) + "\n")
    if not quick and isWhole:
        _write(options["page"], markdown(outcomes, others, rounds, about))
    if not quick and not options["only"] and parts:
        sections = [part.section() for part in found]
        _write(options["mads-page"], madsMarkdown(sections, min(rounds, mads.MOST_ROUNDS)))
    isFailed = any(outcome.failure for outcome in outcomes) or any(part.isFailed for part in found)
    return 1 if isFailed else 0


def _write(page: str, text: str) -> None:
    Path(page).write_text(text)
    print(f"written: {page}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
