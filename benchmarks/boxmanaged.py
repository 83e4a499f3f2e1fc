"""
Connections and streams of librdmacm's kind in a guest of L{lab}, beside librdmacm's own programs.

C{python -m benchmarks.boxmanaged --rounds 3 --json FILE} runs inside, where L{lab.network} has made the
addresses and rxe's devices.
"""

from __future__ import annotations

from typing import Final

from benchmarks.boxstreams import HERE, measured, THERE
from benchmarks.measuring import Case
from benchmarks.orders import Orders
from benchmarks.peer_rdmacm import MODULE

_RXE: Final = ["pyverbs:rxe1", "pyverbs:rxe0"]
_SOFT: Final = ["soft:127.64.77.1:route=rocev2", "soft:127.64.77.2:route=rocev2"]

MANAGED: Final[Orders] = {"module": "benchmarks.cmends", "devices": _RXE, "host": THERE}
"""Connections of ours over the kernel's device, whose manager librdmacm asks."""

OWN: Final[Orders] = {"module": "benchmarks.cmends", "devices": _SOFT, "host": "127.64.77.1"}
"""Connections of ours over the software device, by our own manager."""

STREAM: Final[Orders] = {
    "listen": r"rsocket:0:device=pyverbs\:rxe1",
    "connect": rf"rsocket:{THERE}:{{port}}:device=pyverbs\:rxe0",
}
OWN_STREAM: Final[Orders] = {
    "listen": r"rsocket:0:device=soft\:127.64.77.1\:route=rocev2",
    "connect": r"rsocket:127.64.77.1:{port}:device=soft\:127.64.77.2\:route=rocev2",
}
_PORT: Final = 7480


def cases() -> list[Case]:
    """Each figure of ours, over both devices, beside that of librdmacm's program over rxe."""
    found: list[Case] = []

    def both(
        name: str, what: str, scenario: str, unit: str, ours: tuple[Orders, Orders], orders: Orders
    ) -> None:
        # Each has a port of its own: where a connection is in timewait its port rests.
        theirs = {"module": MODULE, "addresses": [HERE, THERE], "port": _PORT + len(found)}
        program = "cmtime" if scenario == "connects" else "rstream"
        for device, each in zip(("rxe", "software device"), ours, strict=True):
            title = f"{what}: ours over the {device} to {program} over rxe".replace("the rxe", "rxe")
            mode = "RDMA CM" if scenario == "connects" else "rsocket"
            suffix = device.split()[0]
            found.append(Case(f"{name}-{suffix}", title, scenario, unit, each, theirs, orders, mode=mode))

    several = {"count": 60, "parallel": 20, "asks": False, "responseTimeout": 22}
    both("box-connects", "connections made and closed", "connects", "/s", (MANAGED, OWN), several)
    streams = (STREAM, OWN_STREAM)
    bulk = {"bytes": 8 << 20, "write": 64 << 10}
    both("box-rsocket", "throughput, 64 KiB writes", "throughput", "MB/s", streams, bulk)
    ping = {"size": 64, "count": 200}
    both("box-rsocket-roundtrip", "64-byte round trip", "roundTrip", "us", streams, ping)
    return found


if __name__ == "__main__":
    measured("python -m benchmarks.boxmanaged", cases())
