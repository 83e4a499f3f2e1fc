"""
Measure RDMA connections and streams beside librdmacm's programs, in a guest of L{lab}.

C{python -m benchmarks.boxmanaged --rounds 3 --json FILE} runs inside the guest, where L{lab.network} has
configured addresses and rxe's devices.
"""

from __future__ import annotations

from typing import Final

from benchmarks.boxstreams import HERE, measured, THERE
from benchmarks.measuring import Case
from benchmarks.orders import Orders
from benchmarks.peer_rdmacm import MODULE

_PORT: Final = 7480

MANAGED: Final[Orders] = {
    "module": "benchmarks.cmends",
    "devices": ["pyverbs:rxe1", "pyverbs:rxe0"],
    "host": THERE,
}
"""
Connections over the kernel's device and its connection manager, which librdmacm uses as well.

The software device cannot take part: rxe receives all datagrams for the RoCE port of its namespace.
"""

STREAM: Final[Orders] = {
    "listen": r"rsocket:0:device=pyverbs\:rxe1",
    "connect": rf"rsocket:{THERE}:{{port}}:device=pyverbs\:rxe0",
}


def cases() -> list[Case]:
    """Return the cases, each compared with librdmacm's program; both use rxe."""
    found: list[Case] = []

    def both(name: str, what: str, scenario: str, unit: str, tested: Orders, orders: Orders) -> None:
        # one port for each: a port cannot be reused during timewait
        reference = {"module": MODULE, "addresses": [HERE, THERE], "port": _PORT + len(found)}
        program, mode = ("cmtime", "RDMA CM") if scenario == "connects" else ("rstream", "rsocket")
        title = f"{what}: txrdma over rxe to {program} over rxe"
        found.append(Case(name, title, scenario, unit, tested, reference, orders, mode=mode))

    several = {"count": 60, "parallel": 20, "asks": False, "responseTimeout": 22}
    both("box-connects", "connections opened and closed", "connects", "/s", MANAGED, several)
    bulk = {"bytes": 8 << 20, "write": 64 << 10}
    both("box-rsocket", "throughput, 64 KiB writes", "throughput", "MB/s", STREAM, bulk)
    ping = {"size": 64, "count": 200}
    both("box-rsocket-roundtrip", "64-byte round trip", "roundTrip", "us", STREAM, ping)
    return found


if __name__ == "__main__":
    measured("python -m benchmarks.boxmanaged", cases())
