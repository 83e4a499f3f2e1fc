"""
Wires with packet loss: network namespaces joined by a veth pair, for the two processes of a measurement.

A classic BPF classifier drops random packets on ingress in both directions (bpf(8), tc-bpf(8)), so netem is
not needed. There is no delay. Offloading is off, so that single packets are lost; TCP uses CUBIC with
segments of L{PAYLOAD} bytes.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

HERE: Final = "10.79.1.1"
"""Address of the client's end."""

THERE: Final = "10.79.1.2"
"""Address of the server's end."""

MTU: Final = 1500
"""Ethernet MTU that allows an RDMA MTU of 1024."""

PAYLOAD: Final = 994
"""
Bytes in a segment: the payload of an RDMA packet of 1024 bytes, without the header of a message's fragment.
"""

_TIMESTAMPS: Final = 12
_RANDOM: Final = 0xFFFFF000 + 56
"""Offset of a random number for a classic filter: SKF_AD_OFF and SKF_AD_RANDOM in linux/filter.h."""


class WireFailed(Exception):
    """The namespaces cannot be created, usually because of missing privileges."""


class Wire:
    """
    A wire that loses packets.

    @ivar near: network namespace of the client; C{far} that of the server.
    """

    def __init__(self) -> None:
        self.near, self.far = (f"txrdma-{os.getpid()}-{end}" for end in ("near", "far"))

    def make(self, loss: float) -> None:
        """
        Create the namespaces and the veth pair.

        @param loss: share of packets lost in each direction.
        @raise WireFailed: a command failed.
        """
        for end in (self.near, self.far):
            _run("ip", "netns", "add", end)
        peer = ("peer", "name", "wire", "mtu", str(MTU), "netns", self.far)
        _run("ip", "-n", self.near, "link", "add", "wire", "mtu", str(MTU), "type", "veth", *peer)
        for end, address in ((self.near, HERE), (self.far, THERE)):
            _run("ip", "-n", end, "addr", "add", f"{address}/24", "dev", "wire")
            _run("ip", "-n", end, "link", "set", "wire", "gso_max_segs", "1", "up")
            _run("ip", "-n", end, "link", "set", "lo", "up")
            route = ("10.79.1.0/24", "dev", "wire", "src", address)
            _run(
                *("ip", "-n", end, "route", "change", *route),
                *("congctl", "lock", "cubic", "advmss", str(PAYLOAD + _TIMESTAMPS)),
            )
            _run("tc", "-n", end, "qdisc", "add", "dev", "wire", "clsact")
            taken = round((1 - loss) * (1 << 32)) - 1
            # drop packets whose random number is larger (2, TC_ACT_SHOT)
            program = f"4,32 0 0 {_RANDOM},37 1 0 {taken},6 0 0 4294967295,6 0 0 2"
            _run("tc", "-n", end, "filter", "add", "dev", "wire", "ingress", "bpf", "da", "bytecode", program)

    def counted(self) -> dict[str, int]:
        """Return the number of C{lost} packets of the client, and of segments that its TCP sent again."""
        disciplines = json.loads(_run("tc", "-n", self.far, "-s", "-j", "qdisc", "show", "dev", "wire"))
        lines = _run("ip", "netns", "exec", self.near, "cat", "/proc/net/snmp").splitlines()
        names, values = (line.split() for line in lines if line.startswith("Tcp:"))
        return {
            "lost": sum(each["drops"] for each in disciplines),
            "resentByTCP": int(values[names.index("RetransSegs")]),
        }

    def close(self) -> None:
        """Delete both namespaces; processes in them must have ended."""
        for end in (self.near, self.far):
            subprocess.run(["ip", "netns", "del", end], capture_output=True)


@contextmanager
def wire(loss: float) -> Iterator[Wire]:
    """Provide a wire for the block."""
    made = Wire()
    try:
        made.make(loss)
        yield made
    finally:
        made.close()


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise WireFailed(f"no wire that loses packets: {error}") from error
    if done.returncode:
        raise WireFailed(f"no wire that loses packets: {' '.join(command[:4])}: {done.stderr.strip()}")
    return done.stdout
