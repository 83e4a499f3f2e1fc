"""
SMC's TCP option of ordinary TCP sockets and of the kernel's AF_SMC: each sees the other's.
"""

from __future__ import annotations

import os
import socket
import threading
from typing import cast

from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.signalling.option.carrier import openCarrier, OptionCarrier
from txrdma.smc.signalling.option.places import ownCgroup
from txrdma.smc.signalling.option.reasons import OptionUnavailable
from txrdma.smc.signalling.option.savedsyn import saveSYNs, sawOption
from txrdma.test.support.smc.optionworlds import commands
from txrdma.test.system.kernel import Box, OUTSIDE, record, Witness

try:
    from lab import smc
except ImportError:
    OUTSIDE = "not a checkout"

BOXES = (Box(smc=True),)
HERE, THERE = "10.77.0.1", "10.77.0.2"
PATIENCE = 30.0
CLC = bytes.fromhex("e2d4c3d9")
PROPOSAL = 1
WORD = b"in plain TCP"

DECLINE = CLC + bytes.fromhex("04002c20") + bytes(8) + bytes.fromhex("03030000") + bytes(20) + CLC
"""No SMC-R device: version 2, from no peer ID."""


def smcSocket() -> socket.socket:
    """A stream socket of SMC's, dressed as one of IPv4: Python does not know that family's addresses."""
    raw = socket.socket(smc.AF_SMC, socket.SOCK_STREAM, 0)
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=raw.detach())


class OptionTests(SynchronousTestCase):
    """An ordinary socket and one of AF_SMC."""

    skip = OUTSIDE
    witness = Witness("ordinary TCP sockets, marked", "AF_SMC", "TCP option in SYN and SYN-ACK")

    def setUp(self) -> None:
        self.carrier = openCarrier()
        self.addCleanup(self.carrier.close)
        self.assertEqual(self.carrier.why, "")

    def own(self, made: socket.socket) -> socket.socket:
        """With a limit to its patience, closed in the end."""
        made.settimeout(PATIENCE)
        self.addCleanup(made.close)
        return made

    def toKernel(self, carrier: OptionCarrier | None) -> socket.socket:
        """An ordinary socket, connected to one of AF_SMC that listens."""
        listener = self.own(smcSocket())
        listener.bind((THERE, 0))
        listener.listen()
        client = self.own(socket.socket())
        client.bind((HERE, 0))
        if carrier is not None:
            carrier.markBeforeConnect(client)
        client.connect(listener.getsockname())
        return client

    def fromKernel(self, listener: socket.socket) -> socket.socket:
        """What an ordinary socket accepts of one of AF_SMC, which sends L{WORD} when it is connected."""
        listener.bind((THERE, 0))
        listener.listen()
        client = self.own(smcSocket())
        client.bind((HERE, 0))

        def connect() -> None:
            client.connect(listener.getsockname())
            client.sendall(WORD)

        connecting = threading.Thread(target=connect, daemon=True)
        connecting.start()
        self.addCleanup(connecting.join, PATIENCE)
        return self.own(listener.accept()[0])

    def test_client(self) -> None:
        """A listener of AF_SMC answers the option of a marked client with its own, and only that."""
        self.assertTrue(self.carrier.peerHasOption(self.toKernel(self.carrier)))
        self.assertFalse(self.carrier.peerHasOption(self.toKernel(None)))
        record("SYN-ACK of AF_SMC seen", "yes")

    def test_listener(self) -> None:
        """A client of AF_SMC has the option, and proposes when it sees ours; declined, it goes on by TCP."""
        listener = self.own(socket.socket())
        self.carrier.markBeforeListen(listener)
        server = self.fromKernel(listener)
        self.assertTrue(self.carrier.peerHasOption(server))
        self.assertTrue(sawOption(server))
        proposal = server.recv(8, socket.MSG_WAITALL)
        self.assertEqual((proposal[:4], proposal[4]), (CLC, PROPOSAL))
        server.recv(int.from_bytes(proposal[5:7], "big") - 8, socket.MSG_WAITALL)
        server.sendall(DECLINE)
        self.assertEqual(server.recv(len(WORD), socket.MSG_WAITALL), WORD)
        record("Proposal of AF_SMC, bytes", int.from_bytes(proposal[5:7], "big"))

    def test_onlySeen(self) -> None:
        """A listener without a mark sees that a client of AF_SMC has the option, and gets no Proposal."""
        listener = self.own(socket.socket())
        saveSYNs(listener)
        server = self.fromKernel(listener)
        self.assertTrue(sawOption(server))
        self.assertFalse(self.carrier.peerHasOption(server))
        self.assertEqual(server.recv(len(WORD), socket.MSG_WAITALL), WORD)

    def test_kernel(self) -> None:
        """The program runs on this kernel, too: installed, used and removed by the command."""
        try:
            cgroup = ownCgroup()
        except OptionUnavailable as error:
            self.fail(str(error))
        facts = commands(cgroup)
        self.assertEqual(set(cast(dict[str, int], facts["status"]["counters"]).values()), {1})
        self.assertEqual(facts["left"], [])
        record("program verified by Linux", os.uname().release)
