"""
Cases that measure streams and verbs, with their targets.
"""

from __future__ import annotations

import resource
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.measuring import Case
from benchmarks.orders import Orders

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
    found = [
        Case(
            f"bulk-{operation.lower().removeprefix('rdma_')}-{title.split()[0]}",
            f"RC {operation} over software RoCEv2 (UDP), {title} messages; TCP by 64 KiB writes",
            "bulk",
            "MB/s",
            tested=bulk(operation, size),
            reference={**TCP, "scenario": "throughput", "write": 64 << 10},
            orders={"bytes": total},
            atLeast=0.5,
            mode="rocev2",
            needs="isal",
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
            tested=bulk("RDMA_WRITE", MIB),
            reference=UDP,
            orders={"bytes": total},
            mode="rocev2",
        )
    )
    series = {"sizes": [64], "seconds": 0.3 if quick else 1.0, "depth": 256, "inline": 64}
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
                tested=VERBS,
                reference=None,
                orders={**series, "transfers": [transfer], "measures": [measure]},
                leastValue=300_000,
                mode="shared-memory",
            )
        )
    return found


def managed(quick: bool) -> list[Case]:
    """Return the cases about connections of the communication manager."""
    found = []
    for name, title, options, most in (
        ("shared", "shared memory", "", 10_000),
        ("rocev2", "UDP", ":route=rocev2", 10_000),
    ):
        opened = 100 if quick else most
        tested = {"module": "benchmarks.cmends", "options": options}
        route = f"RDMA CM {'rocev2' if options else 'shared-memory'}"
        found += [
            Case(
                f"cm-connects-{name}",
                f"RDMA connections opened and closed over {title}, 32 at a time",
                "connects",
                "/s",
                tested=tested,
                reference={**TCP, "listen": f"{TCP['listen']}:backlog=1000"},
                orders={"count": 300 if quick else 2_000, "parallel": 32, "asks": False},
                atLeast=0.3,
                mode=route,
            ),
            Case(
                f"cm-memory-{name}",
                f"all memory of one end of an idle RDMA connection over {title}, of {opened:,}",
                "many",
                "KiB",
                tested=tested,
                reference=None,
                orders={"connections": opened, "stays": True},
                mode=route,
                mostValue=16.0,
                mostRounds=1,
            ),
        ]
    return found


def rsockets(quick: bool) -> list[Case]:
    """Return the cases about rsocket and SMC-R streams, each compared with TCP."""
    total = 128 * MIB if quick else GIB
    pings = 2_000 if quick else 10_000
    found = []
    for name, title, tested, mode, share in (
        ("rsocket-shared", "rsocket, shared memory", RSOCKET, "rsocket shared-memory", 1),
        ("smc-shared", "SMC-R, shared memory", SMC, "SMC-R shared-memory", 1),
        ("rsocket-rocev2", "rsocket, UDP", RSOCKET_ROCE, "rsocket rocev2", 8),
        ("smc-rocev2", "SMC-R, UDP", ROCE, "SMC-R rocev2", 8),
    ):
        found += [
            Case(
                f"{name}-throughput",
                f"throughput, 64 KiB writes: {title}",
                "throughput",
                "MB/s",
                tested=tested,
                reference=TCP,
                orders={"bytes": total // share, "write": 64 << 10},
                mode=mode,
            ),
            Case(
                f"{name}-roundtrip",
                f"64-byte round trip, epoll reactor: {title}",
                "roundTrip",
                "us",
                tested=tested,
                reference=TCP,
                orders={"size": 64, "count": pings},
                mode=mode,
            ),
        ]
        if tested in (RSOCKET, RSOCKET_ROCE):
            opened = 100 if quick else 10_000
            found.append(
                Case(
                    f"{name}-memory",
                    f"all memory of one end of an idle connection, of {opened:,}: {title}",
                    "many",
                    "KiB",
                    tested=tested,
                    reference=None,
                    orders={"connections": opened, "stays": True},
                    mode=mode,
                    mostValue=32.0,
                    mostRounds=1,
                )
            )
    return found


def streams(quick: bool) -> list[Case]:
    """Return the cases about single streams: throughput, latency and memory."""
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
            tested=SMC,
            reference=TCP,
            orders={"bytes": total, "write": 64 << 10},
            atLeast=3.0,
        ),
        Case(
            "throughput-1m",
            "throughput, 1 MiB writes",
            "throughput",
            "MB/s",
            tested=SMC,
            reference=TCP,
            orders={"bytes": total, "write": MIB},
            atLeast=2.0,
        ),
        Case(
            "roundtrip",
            "64-byte round trip, epoll reactor",
            "roundTrip",
            "us",
            tested=SMC,
            reference=TCP,
            orders={"size": 64, "count": pings},
            atMost=0.16,
        ),
        Case(
            "roundtrip-polling",
            "64-byte round trip, polling reactor (TCP with epoll)",
            "roundTrip",
            "us",
            tested={**SMC, "reactor": "txrdma"},
            reference=TCP,
            orders={"size": 64, "count": pings},
            atMost=0.09,
        ),
        Case(
            "cpu",
            "CPU seconds per GB, both processes, 10 connections with requests and answers of 256 KiB",
            "requests",
            "s/GB",
            tested=SMC,
            reference=TCP,
            orders={"bytes": total, "answer": 256 << 10, "parallel": 10},
            atMost=0.4,
        ),
        Case(
            "rocev2",
            "throughput over software RoCEv2 (UDP), 64 KiB writes, CRC by isal, with the largest "
            "socket buffers that the system allows: 8 MiB with CAP_NET_ADMIN",
            "throughput",
            "MB/s",
            tested=ROCE,
            reference=TCP,
            orders={"bytes": roce, "write": 64 << 10},
            atLeast=0.35,
            needs="isal",
        ),
        Case(
            "rocev2-default-buffers",
            f"the same, with an unprivileged user's socket buffers: net.core.rmem_max of {RMEM_MAX:,} bytes",
            "throughput",
            "MB/s",
            tested={**ROCE, "socketBuffer": RMEM_MAX},
            reference=TCP,
            orders={"bytes": roce, "write": 64 << 10},
            needs="isal",
        ),
        Case(
            "rocev2-zlib",
            "throughput over software RoCEv2 (UDP), 64 KiB writes, CRC by zlib",
            "throughput",
            "MB/s",
            tested={**ROCE, "without": ["isal"]},
            reference=TCP,
            orders={"bytes": roce, "write": 64 << 10},
        ),
        Case(
            "memory",
            f"memory of one end of an idle connection beyond its two ring buffers, at {connections:,}",
            "idle",
            "KiB",
            tested=SMC,
            reference=TCP,
            orders={"connections": connections},
            mostValue=16.0,
        ),
    ]


def programs(quick: bool) -> list[Case]:
    """Return the cases about programs that compute between messages."""
    pings = 1_000 if quick else 5_000
    found = [
        _withCPU(
            f"working-{work}",
            f"64-byte round trip with {work} us of work at each end, epoll reactor",
            "working",
            "us",
            {"size": 64, "count": pings, "work": work},
            "time",
            "round trip",
            atMost=reach,
        )
        for work, reach in ((0, 0.2), (20, 0.5), (60, 0.75), (200, 1.0))
    ]
    found.append(
        _withCPU(
            "calls",
            "AMP calls, one after the other",
            "calls",
            "/s",
            {"count": pings},
            "rate",
            "call",
            atLeast=1.2,
        )
    )
    for parallel, reach in ((1, 1.0), (8, 1.0), (32, 1.15), (128, 1.0)):
        found.append(
            _withCPU(
                f"web-{parallel}",
                f"HTTP requests of files of 2 kB, {parallel} at a time",
                "web",
                "/s",
                {"count": 2_000 if quick else 10_000, "parallel": parallel},
                "rate",
                "request",
                ("p50", "p99"),
                atLeast=reach,
            )
        )
    return found


def _withCPU(
    name: str,
    title: str,
    scenario: str,
    unit: str,
    orders: Orders,
    figure: str,
    each: str,
    percentiles: Sequence[str] = (),
    needs: str | None = None,
    **reach: float,
) -> Case:
    """Return a case for C{figure}, with rows for percentiles of latency and for CPU time of C{each}."""

    def case(
        name: str, title: str, unit: str, figure: str, also: tuple[Case, ...] = (), **reach: float
    ) -> Case:
        common: dict[str, Any] = {"figure": figure, "needs": needs, "also": also, **reach}
        return Case(name, title, scenario, unit, SMC, TCP, orders, **common)

    also = [case(f"{name}-{one}", f"{title}: {one}", "ms", one, atMost=1.0) for one in percentiles]
    also.append(case(f"{name}-cpu", f"{title}: CPU of both processes for each {each}", "us", "cpu"))
    return case(name, title, unit, figure, tuple(also), **reach)


def busy(quick: bool) -> list[Case]:
    """Round trips and requests beside CPU-bound processes or within a limit, or of several clients."""
    pings = 1_000 if quick else 5_000
    found = [
        _withCPU(
            f"busy-{busy}-{work}",
            f"64-byte round trip with {work} us of work at each end, {busy} CPU-bound processes",
            "working",
            "us",
            {"size": 64, "count": pings, "work": work, "busy": busy},
            "time",
            "round trip",
            atMost=0.9,
        )
        for busy in (1, 2, 4)
        for work in (0, 20, 60, 200)
    ]
    found += [
        _withCPU(
            f"busy-{busy}-20-{reactor}",
            f"64-byte round trip with 20 us of work at each end, {busy} CPU-bound processes, {reactor}",
            "working",
            "us",
            {"size": 64, "count": pings, "work": 20, "busy": busy, "reactor": reactor},
            "time",
            "round trip",
            needs="uvloop" if reactor == "uvloop" else None,
            atMost=0.9,
        )
        for reactor in ("asyncio", "uvloop")
        for busy in (1, 2)
    ]
    found += [
        _withCPU(
            f"busy-limit-{work}",
            f"64-byte round trip with {work} us of work at each end, both processes limited to half a core",
            "working",
            "us",
            {"size": 64, "count": pings, "work": work, "limit": 0.5},
            "time",
            "round trip",
            atMost=0.9,
        )
        for work in (0, 20, 60, 200)
    ]
    found += [
        _withCPU(
            f"busy-web-{parallel}",
            f"HTTP requests of files of 2 kB, {parallel} at a time, 2 CPU-bound processes",
            "web",
            "/s",
            {"count": 1_000 if quick else 5_000, "parallel": parallel, "busy": 2},
            "rate",
            "request",
            ("p50", "p99"),
            atLeast=1.1,
        )
        for parallel in (1, 8, 32)
    ]
    for count in (4, 8):
        orders = {"size": 64, "work": 20, "clients": count, "seconds": 1.0 if quick else 3.0}
        title = f"64-byte round trips of {count} client processes, 20 us of work at each end"
        name = f"busy-clients-{count}"
        latency = tuple(
            Case(f"{name}-{one}", f"{title}: {one}", "timed", "ms", SMC, TCP, orders, figure=one, atMost=0.9)
            for one in ("p50", "p99")
        )
        found.append(Case(name, title, "timed", "/s", SMC, TCP, orders, 1.2, figure="rate", also=latency))
    return found


def comingAndGoing(quick: bool) -> list[Case]:
    """Return the cases about opening, closing and idle connections."""
    visits = 500 if quick else 3_000
    smc, tcp = ({**each, "listen": f"{each['listen']}:backlog=1000"} for each in (SMC, TCP))
    opened = 500 if quick else descriptors()
    crowded = 200 if quick else min(2_000, opened)
    return [
        *(
            Case(
                name,
                f"{title}, 32 at a time",
                "connects",
                "/s",
                tested=smc,
                reference=tcp,
                orders={"count": visits, "parallel": 32, "asks": asks},
                atLeast=0.33,
            )
            for name, title, asks in (
                ("connects", "connections opened and closed", False),
                ("connects-ask", "connections opened, with one request, and closed", True),
            )
        ),
        Case(
            "burst",
            "connections of a burst of 1,000 that begin at once",
            "burst",
            "/s",
            tested=smc,
            reference=tcp,
            orders={"count": 1_000},
            atLeast=0.33,
        ),
        Case(
            "first-connect",
            "first connection of a process",
            "first",
            "ms",
            tested=SMC,
            reference=TCP,
            orders={},
            mostValue=30.0,
        ),
        Case(
            "imports",
            "imports of the endpoints, beyond those of Twisted's TCP",
            "imports",
            "ms",
            tested=SMC,
            reference=None,
            orders={},
            mostValue=40.0,
            mostRounds=_FEW,
        ),
        Case(
            "memory-tls",
            "all memory of one end of a TLS connection, of 400",
            "manyTLS",
            "KiB",
            tested=SMC,
            reference=TCP,
            orders={"connections": 400, "tls": True, "stays": True},
            atMost=1.5,
            mostRounds=_FEW,
            needs="OpenSSL",
        ),
        _open(opened),
        Case(
            "beside-connects",
            "64-byte round trip beside 500 connections per second, 99th percentile",
            "beside",
            "us",
            tested=SMC,
            reference=TCP,
            orders={"rate": 500, "seconds": 2 if quick else 5},
            mostRounds=_FEW,
        ),
        Case(
            "crowd",
            f"round trips of 64 bytes over {crowded:,} connections, one of each at a time",
            "crowd",
            "/s",
            tested=smc,
            reference=tcp,
            orders={"connections": crowded, "seconds": 1 if quick else 3},
            atLeast=1.0,
            mostRounds=_FEW,
        ),
        _firstBytes(),
        *contacts(quick),
    ]


def _open(count: int) -> Case:
    """Return a case about the memory of as many connections as may be open."""
    title = f"all memory of one end of an idle connection, of {count:,}"
    what = ("many", "KiB", SMC, TCP, {"connections": count, "stays": True})
    also = tuple(
        Case(f"memory-open-{end}", f"{title}: the {end}'s", *what, figure=end) for end in ("client", "server")
    )
    return Case("memory-open", title, *what, also=also, mostRounds=_FEW)


def _firstBytes() -> Case:
    """Return a case about page faults of a new connection's first bytes."""
    count = 20
    title = f"page faults of both processes in the first round trip of 64 bytes, of {count} connections"

    def case(name: str, of: str, figure: str, also: tuple[Case, ...] = (), most: float | None = None) -> Case:
        what = (f"{title}: {of}", "firstBytes", "faults", SMC, None, {"count": count})
        return Case(name, *what, figure=figure, also=also, mostValue=most, mostRounds=_FEW)

    return case("first-bytes", "median", "", (case("first-bytes-most", "the most", "most", most=255.0),))


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

        def case(name: str, title: str, unit: str, reference: Orders | None, **reach: float) -> Case:
            figure = "rate" if name == "contacts" else name
            what = (f"{name}-{short}", f"{title}: {words}", "contact", unit, tested, reference, orders)
            description = f"SMC-R {mode}, version {version}, links: {links}"
            return Case(*what, figure=figure, mode=description, **reach)  # type: ignore[arg-type]  # all of reach are numbers

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

    def case(name: str, of: str, figure: str, also: tuple[Case, ...] = (), most: float | None = None) -> Case:
        unit = "ms"
        return Case(
            *(name, f"{title}: {of}", "failover", unit, ends, None, orders),
            figure=figure,
            also=also,
            mostValue=most,
            mostRounds=1,
        )

    also = (
        case("failover-worst", "the longest", "worst", most=50.0),
        case("failover-uncut", "the longest without a failure", "uncut"),
    )
    return [case("failover", "median", "p50", also, 50.0)]


def _quoted(device: str) -> str:
    """Quote a device string for use in an endpoint string."""
    return device.replace(":", r"\:").replace("=", r"\=")


def descriptors() -> int:
    """Return the number of connections that a process may open: 10,000 if the system allows it."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(10_000, (hard - 200) // 50 * 50)
