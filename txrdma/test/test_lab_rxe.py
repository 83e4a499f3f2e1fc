"""
The software device and the Linux kernel's rxe talk to each other, by the kernel users' own program.

They need a kernel with C{rdma_rxe}, root and network namespaces: a virtual machine that sets C{LAB=1}.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from typing import Any

from twisted.internet import reactor as theReactor
from twisted.trial.unittest import SkipTest, TestCase

from txrdma.iba.types import GID, MTU, QPN
from txrdma.iba.verbs import (
    Access,
    AddressVector,
    Capacity,
    Operation,
    QPAttributes,
    QPKind,
    QPState,
    ReceiveRequest,
    Segment,
    SendRequest,
)
from txrdma.soft.device import openSoftDevice

KERNEL, OURS = "10.79.0.1", "10.79.0.2"
PROGRAM = "ibv_rc_pingpong"
FILLING = 0x7B
"""What the program sends."""

_NETWORK = f"""
    ip netns add txrdma-far
    ip link add txrdma0 mtu 4400 type veth peer name txrdma1 netns txrdma-far
    ip addr add {KERNEL}/24 dev txrdma0
    ip link set txrdma0 up
    ip -n txrdma-far addr add {OURS}/24 dev txrdma1
    ip -n txrdma-far link set txrdma1 mtu 4400
    ip -n txrdma-far link set txrdma1 up
    ip -n txrdma-far link set lo up
    rdma link add txrdma_rxe type rxe netdev txrdma0
"""


class KernelTests(TestCase):
    """C{ibv_rc_pingpong} of the kernel's side, and the same by a software device in a network namespace."""

    timeout = 120

    def setUp(self) -> None:
        if os.environ.get("LAB") != "1" or os.geteuid() != 0:
            raise SkipTest("only as root in the virtual machine of the lab")
        for program in (PROGRAM, "ip", "rdma"):
            if shutil.which(program) is None:
                raise SkipTest(f"{program} is not installed")
        for line in _NETWORK.strip().splitlines():
            subprocess.run(line.split(), check=True)
        self.addCleanup(subprocess.run, "ip netns del txrdma-far".split(), check=True)
        self.addCleanup(subprocess.run, "rdma link del txrdma_rxe".split(), check=True)
        time.sleep(1)  # the kernel makes the GIDs in its own time

    def play(self, size: int, mtu: int, times: int) -> str:
        """Play with messages of that size; return what our end says."""
        options = f"-d txrdma_rxe -g 1 -s {size} -m {mtu} -n {times} -r 50"
        kernel = subprocess.Popen([PROGRAM, *options.split()], stdout=subprocess.PIPE, text=True)
        ours = subprocess.run(
            [
                "ip",
                "netns",
                "exec",
                "txrdma-far",
                sys.executable,
                "-m",
                __name__,
                str(size),
                str(mtu),
                str(times),
            ],
            stdout=subprocess.PIPE,
            text=True,
            timeout=60,
        )
        said, _ = kernel.communicate(timeout=20)
        self.assertEqual((ours.returncode, kernel.returncode), (0, 0), said + ours.stdout)
        return ours.stdout

    def test_short(self) -> None:
        """Messages of three packets, in both directions."""
        self.assertIn("5 sent, 5 received, 0 again", self.play(3000, 1024, 5))

    def test_long(self) -> None:
        """Messages that go out by UDP_SEGMENT: the kernel agrees with our ICRCs, none is sent again."""
        self.assertIn("20 sent, 20 received, 0 again", self.play(100_000, 4096, 20))


class Player:
    """Our end of the game."""

    def __init__(self, reactor: Any, size: int, mtu: int, times: int) -> None:
        self.reactor = reactor
        self.size, self.times = size, times
        self.sent = self.received = 0
        self.device = openSoftDevice(reactor, OURS, route="rocev2")
        domain = self.device.createProtectionDomain()
        self.queue = self.device.createCompletionQueue(256, self.device.createChannel())
        self.qp = domain.createQueuePair(QPKind.RC, self.queue, self.queue, Capacity())
        self.region = domain.allocateMemory(2 * size, Access.LOCAL_WRITE)
        self.region.view[size:] = bytes((FILLING,)) * size
        self._join(MTU.fitting(mtu))

    def _join(self, mtu: MTU) -> None:
        """Exchange addresses as the program does."""
        with socket.create_connection((KERNEL, 18515), 10) as there:
            gid = self.device.gids(1)[0].toBytes().hex()
            there.sendall(f"0000:{self.qp.number:06x}:{1000:06x}:{gid}\0".encode())
            _lid, number, psn, gid = there.recv(100).decode().rstrip("\0").split(":")
            self.qp.modify(QPAttributes(state=QPState.INIT, pkeyIndex=0, port=1, access=Access.NONE))
            self.qp.modify(
                QPAttributes(
                    state=QPState.RTR,
                    address=AddressVector(GID(bytes.fromhex(gid))),
                    pathMTU=mtu,
                    destinationQPN=QPN(int(number, 16)),
                    rqPSN=int(psn, 16),
                    maxDestRDAtomic=1,
                    minRNRTimer=12,
                )
            )
            self.qp.modify(
                QPAttributes(
                    state=QPState.RTS, timeout=18, retryCount=7, rnrRetry=7, sqPSN=1000, maxRDAtomic=1
                )
            )
            there.sendall(b"done\0")

    def play(self) -> None:
        """Send, and send again whenever something comes back."""
        here = self.region.address, self.size, self.region.lkey
        for number in range(self.times):
            self.qp.postReceive([ReceiveRequest(number, [Segment(*here)])])
        self._send()
        self._look(time.monotonic() + 30)
        self.reactor.run()

    def _send(self) -> None:
        there = Segment(self.region.address + self.size, self.size, self.region.lkey)
        self.qp.postSend([SendRequest(1000, Operation.SEND, [there])])

    def _look(self, end: float) -> None:
        for completion in self.queue.poll(100):
            assert completion.status == 0, completion
            if completion.identifier == 1000:
                self.sent += 1
                continue
            self.received += 1
            assert completion.length == self.size, completion
            if self.received < self.times:
                self._send()
        if self.sent == self.received == self.times or time.monotonic() > end:
            self.reactor.callLater(0.5, self.reactor.stop)  # the peer may want its last answer again
        else:
            self.reactor.callLater(0, self._look, end)

    def told(self) -> str:
        """How it went."""
        requester = self.qp._route.requester  # type: ignore[attr-defined]  # of RoCE routes only
        return f"{self.sent} sent, {self.received} received, {requester.resent} again"


if __name__ == "__main__":
    player = Player(theReactor, *map(int, sys.argv[1:]))
    player.play()
    print(player.told())
