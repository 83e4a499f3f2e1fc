"""
SMC's TCP option on TCP sockets of txrdma and on the kernel's AF_SMC sockets: each detects the other's.
"""

from __future__ import annotations

import os
import socket
import threading
from typing import cast

from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.signalling.option.carrier import openCarrier, OptionCarrier, SAVE_SYN
from txrdma.smc.signalling.option.filesystems import processCgroup
from txrdma.smc.signalling.option.reasons import OptionUnavailable
from txrdma.test.support.smc.option_program import sawOption
from txrdma.test.support.smc.optionworlds import commands
from txrdma.test.system.kernel import Box, OUTSIDE, record, Witness
from txrdma.test.system.kernel.smcprogram import smcSocket

BOXES = (Box(smc=True),)
HERE, THERE = "10.77.0.1", "10.77.0.2"
PATIENCE = 30.0
CLC = bytes.fromhex("e2d4c3d9")
PROPOSAL = 1
WORD = b"in plain TCP"

DECLINE = CLC + bytes.fromhex("04002c20") + bytes(8) + bytes.fromhex("03030000") + bytes(20) + CLC
"""Diagnosis "no SMC-R device", version 2, without a peer ID."""


class OptionTests(SynchronousTestCase):
    """A TCP socket and an AF_SMC socket."""

    skip = OUTSIDE
    witness = Witness("ordinary TCP sockets, marked", "AF_SMC", "TCP option in SYN and SYN-ACK")

    def setUp(self) -> None:
        self.carrier = openCarrier()
        self.addCleanup(self.carrier.close)
        self.assertEqual(self.carrier.why, "")

    def own(self, made: socket.socket) -> socket.socket:
        """Set a timeout, and close the socket after the test."""
        made.settimeout(PATIENCE)
        self.addCleanup(made.close)
        return made

    def toKernel(self, carrier: OptionCarrier | None) -> socket.socket:
        """Connect a TCP socket to a listening AF_SMC socket."""
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
        """Accept a connection of an AF_SMC socket, which sends L{WORD} when it is connected."""
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
        """An AF_SMC listener returns the option to a client that sends it, and to no other."""
        self.assertTrue(self.carrier.peerHasOption(self.toKernel(self.carrier)))
        self.assertFalse(self.carrier.peerHasOption(self.toKernel(None)))
        record("SYN-ACK of AF_SMC seen", "yes")

    def test_listener(self) -> None:
        """An AF_SMC client sends the option, proposes when it receives one, and uses TCP when declined."""
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
        """A listener without the option detects that of an AF_SMC client, and receives no Proposal."""
        listener = self.own(socket.socket())
        listener.setsockopt(socket.IPPROTO_TCP, SAVE_SYN, 1)
        server = self.fromKernel(listener)
        self.assertTrue(sawOption(server))
        self.assertFalse(self.carrier.peerHasOption(server))
        self.assertEqual(server.recv(len(WORD), socket.MSG_WAITALL), WORD)

    def test_kernel(self) -> None:
        """The command can install, use and remove the program on this kernel."""
        try:
            cgroup = processCgroup()
        except OptionUnavailable as error:
            self.fail(str(error))
        facts = commands(cgroup)
        self.assertEqual(set(cast(dict[str, int], facts["status"]["counters"]).values()), {1})
        self.assertEqual(facts["left"], [])
        record("program verified by Linux", os.uname().release)
