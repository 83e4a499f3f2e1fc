"""
Shared memory between real processes: discovery, end, and access.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from txrdma.error import DeviceUnavailable
from txrdma.iba.types import RKey
from txrdma.iba.verbs import (
    AsyncEventKind,
    Operation,
    QPState,
    Status,
)
from txrdma.soft.shared import unixpackets
from txrdma.soft.shared._rendezvous import rendezvousName, shareable
from txrdma.test.integration.soft.test_rendezvous import StrangerCase
from txrdma.test.support.processes import suspend
from txrdma.test.support.soft.neighbour import RECEIVES
from txrdma.test.support.soft.neighbours import Added, NeighbourCase
from txrdma.test.support.soft.pairs import End
from txrdma.unix import sockets as unixsockets
from txrdma.unix.mapping import closeMapping, sealedMemory
from txrdma.unix.sockets import Credentials


class NeighbourTests(NeighbourCase):
    slowBecause = "each test starts another process"

    def killed(self, end: End) -> subprocess.Popen[str]:
        """Kill the other process during a send."""
        process = self.neighbour(end)
        self.exchange(end)
        suspend(process.pid)
        end.post(501, Operation.SEND, inline=[b"x"])
        end.post(502, Operation.SEND, inline=[b"x"])
        self.assertEqual(end.queue.poll(10), ())
        os.kill(process.pid, signal.SIGKILL)
        found = self.take(end, 2 + RECEIVES - 1)
        self.assertEqual(
            [(c.identifier, c.status) for c in found[:2]],
            [(501, Status.RETRY_EXC_ERR), (502, Status.WR_FLUSH_ERR)],
        )
        self.assertEqual({c.status for c in found[2:]}, {Status.WR_FLUSH_ERR})
        self.assertIs(end.qp.state, QPState.ERR)
        self.runUntil(lambda: end.events)
        self.assertEqual([event.kind for event in end.events], [AsyncEventKind.QP_FATAL])
        return process

    def test_killedPeersLeaveNothing(self) -> None:
        device = self.open()
        added = Added()
        for _ in range(3):
            end = End(device)
            self.end(self.killed(end))
            end.domain.close()
            end.queue.close()
            end.channel.close()
        self.assertTrue(added.isNothing())


class DescriptorTests(NeighbourCase):
    """A process without free descriptors for those of its peer."""

    slowBecause = "starts another process"

    def scarce(self) -> Callable[[], None]:
        """Use up all descriptors, until the result is called."""
        next_ = os.dup(0)
        os.close(next_)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (next_, hard))
        return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    def test_dataWaitsUntilPeersMemoryCanBeMapped(self) -> None:
        end = End(self.open())
        self.neighbour(end)
        self.exchange(end)
        reported = json.loads(self.reported)
        end.region.view[:5] = b"hello"
        where = {"remoteAddress": reported["address"] + 8192, "rkey": RKey(reported["rkey"])}
        plenty = self.scarce()
        try:
            end.post(1, Operation.RDMA_WRITE, [end.segment(0, 5)], **where)
            begun = time.monotonic()
            self.runUntil(lambda: time.monotonic() > begun + 0.3)
            self.assertEqual(end.queue.poll(10), ())
        finally:
            plenty()
        self.assertEqual([c.status for c in self.take(end, 1)], [Status.SUCCESS])
        self.assertIs(end.qp.state, QPState.RTS)
        self.exchange(end)

    def test_processThatDiesInDiscoveryIsUnavailable(self) -> None:
        device, other = self.open(), self.open()
        port: Any = other.ports[0].routes[0]

        def peerOf(sock: socket.socket) -> Credentials:
            port._listener.close()
            return unixsockets.peerOf(sock)

        self.patch(unixpackets, "peerOf", peerOf)
        here: Any = device.ports[0].routes[0]
        name = (other.ports[0].address, other.ports[0].udpPort)
        with self.assertRaises(DeviceUnavailable):
            here._connect(name)
        self.assertEqual((here._peers, here._links), ({}, {}))


class StrangerTests(StrangerCase):
    """Another process that connects to the rendezvous."""

    def test_otherUserIsDisconnectedFirst(self) -> None:
        if os.getuid() != 0:
            self.skipTest("only root can be somebody else")
        name = rendezvousName(self.device.address, self.device.port)
        program = (
            "import os, socket, sys\n"
            "os.setgid(65534); os.setuid(65534)\n"
            "sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
            f"sock.connect({name!r})\n"
            "sock.settimeout(20)\n"
            "print(sock.recv(100))\n"
        )
        process = subprocess.Popen([sys.executable, "-S", "-c", program], stdout=subprocess.PIPE)
        self.addCleanup(process.kill)
        self.runUntil(lambda: process.poll() is not None)
        out, _ = process.communicate()
        self.assertEqual(out, b"b''\n")
        self.check()

    def test_otherUserCannotReopenMemory(self) -> None:
        """A process of another user that may only read memory cannot open its descriptor again to write."""
        if os.getuid() != 0:
            self.skipTest("only root can be somebody else")
        memory, mapping = sealedMemory("txrdma test", mmap.PAGESIZE)
        self.addCleanup(closeMapping, mapping)
        self.addCleanup(os.close, memory)
        mapping[:5] = b"hello"
        readable = shareable(memory, 0)
        self.addCleanup(os.close, readable)
        program = (
            "import os, sys\n"
            "number = int(sys.argv[1])\n"
            "assert os.pread(number, 5, 0) == b'hello'\n"
            "for path in (f'/proc/self/fd/{number}', f'/proc/{os.getppid()}/fd/{number}'):\n"
            "    for flags in (os.O_RDWR, os.O_WRONLY):\n"
            "        try:\n"
            "            os.open(path, flags)\n"
            "        except PermissionError:\n"
            "            print('refused')\n"
        )
        words = [sys.executable, "-S", "-c", program, str(readable)]
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=60, pass_fds=[readable], user=65534, group=65534
        )
        self.assertEqual((done.stdout.split(), done.stderr), (["refused"] * 4, ""))
