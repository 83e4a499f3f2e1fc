"""Cases that measure streams and verbs, with their targets."""

from __future__ import annotations

import resource
from dataclasses import replace
from typing import Any, Final

from benchmarks.measuring import Case
from benchmarks.orders import Orders
from txrdma.commands.common.installation import areCoresCompiled

MIB = 1 << 20
GIB = 1 << 30

_FEW = 3
"""
Maximum number of rounds of cases that are slow or hardly vary, so that everything but the guests takes 20
minutes.
"""

ENDPOINTS = {"listen": "tcp:0:interface=127.0.0.1", "connect": "tcp:127.0.0.1:{port}"}
TCP = ENDPOINTS
RMEM_MAX = 212_992
"""Linux's default of net.core.rmem_max and wmem_max, for users who cannot exceed them."""
SMC = {"listen": "smc:0:interface=127.0.0.1", "connect": "smc:127.0.0.1:{port}"}
ROCE = {
    "listen": r"smc:0:interface=127.0.0.1:device=soft\:route=rocev2",
    "connect": r"smc:127.0.0.1:{port}:device=soft\:route=rocev2",
}


RSOCKET = {
    "listen": "rsocket:0:interface=127.64.77.1",
    "connect": "rsocket:127.64.77.1:{port}:bindAddress=127.64.77.2",
}
RSOCKET_ROCE = {
    "listen": r"rsocket:0:device=soft\:127.64.77.1\:route=rocev2",
    "connect": r"rsocket:127.64.77.1:{port}:device=soft\:127.64.77.2\:route=rocev2",
}
"""rsocket streams, each end at its own loopback address."""

VERBS = {"module": "benchmarks.verbsends", "device": "soft", "reactor": "txrdma", **ENDPOINTS}
UDP = {"module": "benchmarks.peer_udp", "scenario": "udp"}


def bulk(operation: str, size: int) -> Orders:
    """Return orders for bulk transfers over software RoCEv2."""
    return {
        **VERBS,
        "device": "soft:route=rocev2",
        "reactor": "epoll",
        "operation": operation,
        "write": size,
        "depth": max(4, min(64, 4 * MIB // size)),
    }


def verbs(quick: bool) -> list[Case]:
    """Return the cases about queue pairs."""
    total = 64 * MIB if quick else 512 * MIB
    common: dict[str, Any] = {"orders": {"bytes": total}, "mode": "rocev2"}
    writes = {**TCP, "scenario": "throughput", "write": 64 << 10}
    found = [
        Case(
            f"bulk-{operation.lower().removeprefix('rdma_')}-{title.split()[0]}",
            f"RC {operation} over software RoCEv2 (UDP), {title} messages; TCP by 64 KiB writes",
            *("bulk", "MB/s", bulk(operation, size), writes),
            atLeast=0.5,
            needs="zlib_ng",
            **common,
        )
        for operation in ("RDMA_WRITE", "SEND")
        for size, title in ((64 << 10, "64 KiB"), (MIB, "1 MiB"))
    ]
    title = "RC RDMA_WRITE over software RoCEv2, 1 MiB messages; Twisted UDP by datagrams of 4 KiB"
    found.append(Case("bulk-udp", title, "bulk", "MB/s", bulk("RDMA_WRITE", MIB), UDP, **common))
    series = {"sizes": [64], "seconds": 0.3 if quick else 1.0, "depth": 256, "inline": 64}
    for name, title, transfer, measure in (
        ("send", "RC SEND, the sender's", "send", "bandwidth"),
        ("both", "RC SEND both ways, those of sends and of receives", "send", "bidirectional"),
        ("write", "RC RDMA WRITE", "write", "bandwidth"),
    ):
        orders = {**series, "transfers": [transfer], "measures": [measure]}
        title = f"completions through the reactor: shared memory, {title}"
        what = (f"completions-{name}", title, "series", "/s", VERBS, None, orders)
        found.append(Case(*what, leastValue=300_000, mode="shared-memory"))
    return found


def managed(quick: bool) -> list[Case]:
    """Return the cases about connections of the communication manager."""
    found = []
    opened = 100 if quick else 10_000
    opens = {"count": 300 if quick else 2_000, "parallel": 32, "asks": False}
    tcp = {**TCP, "listen": f"{TCP['listen']}:backlog=1000"}
    for name, title, options, route in (
        ("shared", "shared memory", "", "shared-memory"),
        ("rocev2", "UDP", ":route=rocev2", "rocev2"),
    ):
        tested = {"module": "benchmarks.cmends", "options": options}
        mode = f"RDMA CM {route}"
        found += [
            Case(
                f"cm-connects-{name}",
                f"RDMA connections opened and closed over {title}, 32 at a time",
                *("connects", "/s", tested, tcp, opens),
                atLeast=0.3,
                mode=mode,
            ),
            _idle(
                f"cm-memory-{name}",
                f"RDMA connection over {title}, of {opened:,}",
                tested,
                opened,
                mode,
                16.0,
            ),
        ]
    return found


def _idle(name: str, what: str, tested: Orders, count: int, mode: str, most: float) -> Case:
    """Return a case about the memory of idle connections, which is compared with nothing."""
    orders = {"connections": count, "stays": True}
    title = f"all memory of one end of an idle {what}"
    return Case(name, title, "many", "KiB", tested, None, orders, mode=mode, mostValue=most, mostRounds=1)


def rsockets(quick: bool) -> list[Case]:
    """Return the cases about rsocket and SMC-R streams, each compared with TCP."""
    total = 128 * MIB if quick else GIB
    opened = 100 if quick else 10_000
    ping = {"size": 64, "count": 2_000 if quick else 10_000}
    found = []
    for name, title, tested, mode, share in (
        ("rsocket-shared", "rsocket, shared memory", RSOCKET, "rsocket shared-memory", 1),
        ("smc-shared", "SMC-R, shared memory", SMC, "SMC-R shared-memory", 1),
        ("rsocket-rocev2", "rsocket, UDP", RSOCKET_ROCE, "rsocket rocev2", 8),
        ("smc-rocev2", "SMC-R, UDP", ROCE, "SMC-R rocev2", 8),
    ):
        bulk = {"bytes": total // share, "write": 64 << 10}
        for figure, words, scenario, unit, orders in (
            ("throughput", "throughput, 64 KiB writes", "throughput", "MB/s", bulk),
            ("roundtrip", "64-byte round trip, epoll reactor", "roundTrip", "us", ping),
        ):
            what = (f"{name}-{figure}", f"{words}: {title}", scenario, unit, tested, TCP, orders)
            found.append(Case(*what, mode=mode))
            if name == "rsocket-shared" and figure == "roundtrip":
                what = (f"{name}-smc", f"{words}: {title}; SMC-R", scenario, unit, tested, SMC, orders)
                found[-1] = replace(found[-1], also=(Case(*what, mode=mode, atMost=2.0),))
        if tested in (RSOCKET, RSOCKET_ROCE):
            words = f"connection, of {opened:,}: {title}"
            found.append(_idle(f"{name}-memory", words, tested, opened, mode, 32.0))
    return found


def _compared(name: str, title: str, scenario: str, unit: str, orders: Orders, **more: Any) -> Case:
    """Return a case of SMC-R on the device that it chooses, compared with TCP."""
    return replace(Case(name, title, scenario, unit, SMC, TCP, orders), **more)


def streams(quick: bool) -> list[Case]:
    """Return the cases about single streams: throughput, latency and memory."""
    total = 256 * MIB if quick else 2 * GIB
    connections = 200 if quick else 1_000
    ping = ("roundTrip", "us", {"size": 64, "count": 2_000 if quick else 20_000})
    answers = {"bytes": total, "answer": 256 << 10, "parallel": 10}
    roce = ("throughput", "MB/s", {"bytes": total // 8, "write": 64 << 10})
    polling = {**SMC, "reactor": "txrdma"}
    most, mostPolling = (0.06, 0.045) if areCoresCompiled() else (0.16, 0.09)
    crowd = {"bytes": total, "answer": 256 << 10, "parallel": 100}

    def bulk(name: str, size: int, words: str, least: float) -> Case:
        orders = {"bytes": total, "write": size}
        title = f"throughput, {words} writes"
        return _compared(name, title, "throughput", "MB/s", orders, atLeast=least)

    return [
        bulk("throughput-64k", 64 << 10, "64 KiB", 3.0),
        bulk("throughput-1m", MIB, "1 MiB", 2.0),
        _compared("roundtrip", "64-byte round trip, epoll reactor", *ping, atMost=most),
        _compared(
            "roundtrip-polling",
            "64-byte round trip, polling reactor (TCP with epoll)",
            *ping,
            tested=polling,
            atMost=mostPolling,
        ),
        _compared(
            "cpu",
            "CPU seconds per GB, both processes, 10 connections with requests and answers of 256 KiB",
            *("requests", "s/GB", answers),
            atMost=0.3,
        ),
        _compared(
            "throughput-100",
            "throughput of 100 connections at once, with requests and answers of 256 KiB",
            *("requests", "MB/s", crowd),
            figure="bytes",
            atLeast=2.5,
        ),
        _compared(
            "rocev2",
            "throughput over software RoCEv2 (UDP), 64 KiB writes, CRC by zlib-ng, with the largest "
            "socket buffers that the user may have, up to 8 MiB",
            *roce,
            tested=ROCE,
            atLeast=0.8,
            needs="zlib_ng",
        ),
        _compared(
            "rocev2-default-buffers",
            f"the same, with socket buffers of Linux's default net.core.rmem_max of {RMEM_MAX:,} bytes",
            *roce,
            tested={**ROCE, "socketBuffer": RMEM_MAX},
            atLeast=0.6,
            needs="zlib_ng",
        ),
        _compared(
            "rocev2-zlib",
            "throughput over software RoCEv2 (UDP), 64 KiB writes, CRC by zlib",
            *roce,
            tested={**ROCE, "without": ["zlib_ng"]},
        ),
        _compared(
            "memory",
            f"memory of one end of an idle connection beyond its two ring buffers, at {connections:,}",
            *("idle", "KiB", {"connections": connections}),
            mostValue=6.0,
        ),
    ]


def programs(quick: bool) -> list[Case]:
    """Return the cases about programs that compute between messages."""
    pings = 1_000 if quick else 5_000
    requests = 2_000 if quick else 10_000
    return [
        *(_working(f"working-{work}", pings, work, "epoll reactor", reach) for work, reach in _WORKS.items()),
        _withCPU(
            "calls",
            "AMP calls, one after the other",
            *("calls", "/s", {"count": pings}, "rate", "call"),
            atLeast=1.2,
        ),
        *(_web("web", parallel, "", reach, 1.0, count=requests) for parallel, reach in _REQUESTS.items()),
    ]


_WORKS: Final = {0: 0.2, 20: 0.5, 60: 0.75, 200: 0.83}
"""Targets by the microseconds of work at each end of a round trip."""

_REQUESTS: Final = {1: 1.0, 8: 1.0, 32: 1.15, 128: 1.0}
"""Targets by the number of parallel HTTP requests."""


def _working(
    name: str, count: int, work: int, where: str, most: float = 0.9, needs: str | None = None, **orders: Any
) -> Case:
    """Return a case about round trips with some microseconds of work at each end."""
    return _withCPU(
        name,
        f"64-byte round trip with {work} us of work at each end, {where}",
        *("working", "us", {"size": 64, "count": count, "work": work, **orders}, "time", "round trip"),
        needs=needs,
        atMost=most,
    )


def _web(name: str, parallel: int, where: str, least: float, latency: float, **orders: Any) -> Case:
    """Return a case about HTTP requests of small files."""
    return _withCPU(
        f"{name}-{parallel}",
        f"HTTP requests of files of 2 kB, {parallel} at a time{where}",
        *("web", "/s", {"parallel": parallel, **orders}, "rate", "request", latency),
        atLeast=least,
    )


def _withCPU(
    name: str,
    title: str,
    scenario: str,
    unit: str,
    orders: Orders,
    figure: str,
    each: str,
    latency: float | None = None,
    needs: str | None = None,
    **reach: float,
) -> Case:
    """
    Return a case for C{figure}, with a row for CPU time of C{each}.

    @param latency: target of two percentiles of latency, which get rows, too; None: no such rows.
    """

    def case(name: str, title: str, unit: str, figure: str, **more: Any) -> Case:
        return _compared(name, title, scenario, unit, orders, figure=figure, needs=needs, **more)

    percentiles = () if latency is None else ("p50", "p99")
    also = [case(f"{name}-{one}", f"{title}: {one}", "ms", one, atMost=latency) for one in percentiles]
    cpu = f"{title}: CPU of both processes for each {each}"
    also.append(case(f"{name}-cpu", cpu, "us", "cpu", atMost=1.0))
    return case(name, title, unit, figure, also=tuple(also), **reach)


def busy(quick: bool) -> list[Case]:
    """
    Round trips and requests beside CPU-bound processes or within a limit, or of several clients.

    Beside two CPU-bound processes or more, both ends of a pair share a processor, or each shares one with a
    busy process, which takes twice as long. The scheduler decides this when a pair starts, so these cases
    have more pairs.
    """
    pings = 1_000 if quick else 2_500
    besides = {busy: f"{busy} CPU-bound processes" for busy in (1, 2, 4)}
    found = [
        _working(f"busy-{busy}-{work}", pings, work, beside, busy=busy)
        for busy, beside in besides.items()
        for work in _WORKS
    ]
    for reactor, needs in (("asyncio", None), ("uvloop", "uvloop")):
        for busy in (1, 2):
            where = f"{besides[busy]}, {reactor}"
            name = f"busy-{busy}-20-{reactor}"
            found.append(_working(name, pings, 20, where, needs=needs, busy=busy, reactor=reactor))
    half = "both processes limited to half a core"
    found += [
        _web("busy-web", parallel, f", {besides[2]}", 1.1, 0.9, count=pings, busy=2)
        for parallel in (1, 8, 32)
    ]
    found = [replace(case, pairs=1 if quick or case.orders["busy"] == 1 else 3) for case in found]
    found += [_working(f"busy-limit-{work}", pings, work, half, limit=0.5) for work in _WORKS]
    for count in (4, 8):
        orders = {"size": 64, "work": 20, "clients": count, "seconds": 1.0 if quick else 3.0}
        title = f"64-byte round trips of {count} client processes, 20 us of work at each end"
        name = f"busy-clients-{count}"
        latency = tuple(
            _compared(f"{name}-{one}", f"{title}: {one}", "timed", "ms", orders, figure=one, atMost=0.9)
            for one in ("p50", "p99")
        )
        found.append(_compared(name, title, "timed", "/s", orders, atLeast=1.2, figure="rate", also=latency))
    return found


def comingAndGoing(quick: bool) -> list[Case]:
    """Return the cases about opening, closing and idle connections."""
    visits = 500 if quick else 3_000
    smc, tcp = ({**each, "listen": f"{each['listen']}:backlog=1000"} for each in (SMC, TCP))
    opened = 500 if quick else descriptors()
    crowded = 200 if quick else min(2_000, opened)
    crowd = {"connections": crowded, "seconds": 1 if quick else 3}
    waiting: dict[str, Any] = {"tested": smc, "reference": tcp}

    def visit(name: str, title: str, asks: bool) -> Case:
        orders = {"count": visits, "parallel": 32, "asks": asks}
        title = f"{title}, 32 at a time"
        return _compared(name, title, "connects", "/s", orders, **waiting, atLeast=0.5)

    return [
        visit("connects", "connections opened and closed", False),
        visit("connects-ask", "connections opened, with one request, and closed", True),
        _compared(
            "burst",
            "connections of a burst of 1,000 that begin at once",
            *("burst", "/s", {"count": 1_000}),
            **waiting,
            atLeast=0.33,
        ),
        # 12 ms where imports of Twisted's endpoints take 60 ms, and so 30 where they take 150
        _compared("first-connect", "first connection of a process", "first", "ms", {}, mostValue=30.0),
        _compared(
            "imports",
            "imports of the endpoints, beyond those of Twisted's TCP; imports of Twisted's endpoints",
            *("imports", "ms", {}),
            atMost=0.42,
            mostRounds=_FEW,
        ),
        _compared(
            "memory-tls",
            "all memory of one end of a TLS connection, of 400",
            *("manyTLS", "KiB", {"connections": 400, "tls": True, "stays": True}),
            atMost=1.5,
            mostRounds=_FEW,
            needs="OpenSSL",
        ),
        _open(opened),
        _compared(
            "beside-connects",
            "64-byte round trip beside 500 connections per second, 99th percentile",
            *("beside", "us", {"rate": 500, "seconds": 2 if quick else 5}),
            mostRounds=_FEW,
        ),
        _compared(
            "crowd",
            f"round trips of 64 bytes over {crowded:,} connections, one of each at a time",
            *("crowd", "/s", crowd),
            **waiting,
            atLeast=1.0,
            mostRounds=_FEW,
        ),
        _firstBytes(),
        *contacts(quick),
    ]


def _open(count: int) -> Case:
    """Return a case about the memory of as many connections as may be open."""
    title = f"all memory of one end of an idle connection, of {count:,}"
    what = ("many", "KiB", {"connections": count, "stays": True})
    also = tuple(
        _compared(f"memory-open-{end}", f"{title}: the {end}'s", *what, figure=end)
        for end in ("client", "server")
    )
    return _compared("memory-open", title, *what, also=also, mostRounds=_FEW)


def _firstBytes() -> Case:
    """Return a case about page faults of a new connection's first bytes."""
    count = 20
    title = f"page faults of both processes in the first round trip of 64 bytes, of {count} connections"
    what = ("firstBytes", "faults", {"count": count})
    few: dict[str, Any] = {"reference": None, "mostRounds": _FEW}
    most = _compared("first-bytes-most", f"{title}: the most", *what, figure="most", mostValue=255.0, **few)
    return _compared("first-bytes", f"{title}: median", *what, also=(most,), **few)


def contacts(quick: bool) -> list[Case]:
    """Return the cases about first contacts and later connects, by version and number of links."""
    orders = {"count": 30 if quick else 100, "parallel": 32}
    tcp = {**TCP, "listen": f"{TCP['listen']}:backlog=1000"}
    memory = ("127.0.0.2", "127.0.0.4", "auto", "shared-memory", "shared memory")
    udp = ("127.0.0.2", "127.0.0.4", "rocev2", "rocev2", "UDP")
    twice = ("127.0.0.2,127.0.0.3", "127.0.0.4,127.0.0.5", "rocev2", "rocev2", "UDP")

    def cases(way: tuple[str, str, str, str, str], version: int, links: int) -> list[Case]:
        there, here, route, mode, by = way
        tested: Orders = {"links": links}
        for name, end, address in (("listen", tcp["listen"], there), ("connect", tcp["connect"], here)):
            device = _quoted(f"soft:{address}:route={route}")
            ueid = ":ueid=EXAMPLE.COM" if version == 2 else ""
            tested[name] = f"{end.replace('tcp', 'smc')}:device={device}:version={version}{ueid}"
        words = f"version {version}, {links} link{'s' * (links > 1)}, {by}"
        short = f"{mode}-v{version}-{links}"

        def case(name: str, title: str, unit: str, reference: Orders | None, **reach: Any) -> Case:
            figure = "rate" if name == "contacts" else name
            what = (f"{name}-{short}", f"{title}: {words}", "contact", unit, tested, reference, orders)
            description = f"SMC-R {mode}, version {version}, links: {links}"
            return Case(*what, figure=figure, mode=description, **reach)

        found = [
            case("first", "first contact of two processes", "ms", tcp),
            case("later", "later connects, in sequence, median", "ms", tcp),
            case("contacts", "later connects, opened and closed, 32 at a time", "/s", tcp, atLeast=0.33),
        ]
        if links > 1:
            found.insert(1, case("links", "first contact until its group has all links", "ms", None))
        return found

    found = []
    for ways in (((memory, 1, 1), (memory, 2, 1)), ((udp, 1, 1), (udp, 2, 1), (twice, 2, 2))):
        first, *others = (each for way, version, links in ways for each in cases(way, version, links))
        found.append(replace(first, also=tuple(others), mostRounds=_FEW))
    return found


def failing(quick: bool) -> list[Case]:
    """Return the cases about streams whose link fails."""
    reference, tested = "soft:127.0.0.2,127.0.0.3:route=rocev2", "soft:127.0.0.4,127.0.0.5:route=rocev2"
    ends = {
        "listen": f"smc:0:interface=127.0.0.1:device={_quoted(reference)}",
        "connect": f"smc:127.0.0.1:{{port}}:device={_quoted(tested)}",
    }
    count = 10 if quick else 100
    orders = {"count": count, "addresses": ["127.0.0.4", "127.0.0.5"], "device": tested}
    title = f"pause of a stream whose port goes down, over UDP, of {count} times"

    def case(name: str, of: str, figure: str, **more: Any) -> Case:
        what = (name, f"{title}: {of}", "failover", "ms", ends, None, orders)
        return Case(*what, figure=figure, mostRounds=1, **more)

    also = (
        case("failover-worst", "the longest", "worst", mostValue=50.0),
        case("failover-uncut", "the longest without a failure", "uncut"),
    )
    return [case("failover", "median", "p50", also=also, mostValue=50.0)]


def _quoted(device: str) -> str:
    """Quote a device string for use in an endpoint string."""
    return device.replace(":", r"\:").replace("=", r"\=")


def descriptors() -> int:
    """Return the number of connections that a process may open: 10,000 if the system allows it."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(10_000, (hard - 200) // 50 * 50)
