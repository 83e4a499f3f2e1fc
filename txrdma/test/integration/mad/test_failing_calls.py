"""Each system call fails once while a management port is opened, used and closed."""

from __future__ import annotations

import _socket
import contextlib
import os
import threading
from random import Random
from typing import Any

from twisted.internet import reactor as theReactor
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from txrdma.iba.types import GUID, LID
from txrdma.iba.verbs import NodeType
from txrdma.mad.agent import MADAgent
from txrdma.mad.layouts.smp import NodeInfo, PKeyTable, PortInfo
from txrdma.mad.ports import openMADPort
from txrdma.mad.ports.ibsim import ControlType, IbsimControl
from txrdma.test.support.openings import OpeningContract

reactor: Any = theReactor


class _Ibsim:
    """
    The control socket of ibsim, in a thread, by sockets whose calls do not fail.

    @ivar clients: slots of the clients that are attached.
    """

    def __init__(self, base: str) -> None:
        self.clients: set[int] = set()
        self._base = base
        self._control = self._bound("ctl")
        self._outputs = [self._bound(f"out{slot}") for slot in range(4)]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _bound(self, name: str) -> _socket.socket:
        made = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
        made.bind(f"\0{self._base}:{name}\0")
        return made

    def _serve(self) -> None:
        while True:
            message, client = self._control.recvfrom(80)
            if not message:
                return
            asked = IbsimControl.decode(message)
            content = self._answer(asked)
            with contextlib.suppress(OSError):  # it has closed its socket
                self._control.sendto(
                    IbsimControl(
                        magic=asked.magic, slot=asked.slot, type=asked.type, length=64, content=content
                    ).encode(),
                    client,
                )

    def _answer(self, asked: IbsimControl) -> bytes:
        content = b""
        if asked.type is ControlType.CONNECT:
            slot = next(slot for slot in range(1 << 16) if slot not in self.clients)
            self.clients.add(slot)
            content = (slot % 4).to_bytes(4, "little")
        elif asked.type is ControlType.DISCONNECT:
            self.clients.discard(asked.slot)
        elif asked.type is ControlType.GET_PORT_INFO:
            content = PortInfo(lid=LID(3), localPortNum=1).encode()
        elif asked.type is ControlType.GET_NODE_INFO:
            content = NodeInfo(
                nodeType=NodeType.CHANNEL_ADAPTER, nodeGUID=GUID.fromInt(5), localPortNum=1
            ).encode()
        elif asked.type is ControlType.GET_PKEYS:
            content = PKeyTable(pkeys=(0xFFFF, *(0 for _ in range(31)))).encode()
        return content.ljust(64, b"\0")

    def finish(self) -> None:
        """End the thread when it has handled all messages."""
        if self._thread.is_alive():
            ending = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
            ending.sendto(b"", f"\0{self._base}:ctl\0")
            ending.close()
            self._thread.join()

    def stop(self) -> None:
        """End the thread, and close the sockets."""
        self.finish()
        for each in (self._control, *self._outputs):
            each.close()


class PortCase(OpeningContract, TestCase):
    """A port on the real reactor."""

    slowBecause = "each call fails in a port of its own on the real reactor"
    description: str

    async def use(self) -> None:
        """Open the port for an agent, let the reactor run, and close it."""
        with MADAgent(reactor, openMADPort(reactor, self.description)) as agent:
            self.opened(agent)
            await deferLater(reactor, 0)

    def opened(self, agent: MADAgent) -> None:
        """Check the attributes of the port."""


class VerbsTests(PortCase):
    """A queue pair of a software device."""

    mostLogged = 1  # that the coordinator of the address does not accept a connection

    async def test_each(self) -> None:
        """A call that fails ends the opening with an error of txrdma, or is repeated, and leaves nothing."""
        random = Random()
        address = f"vmad:soft:127.{random.randrange(2, 250)}.{random.randrange(2, 250)}.1"
        self.description = address
        await self.check(60)
        with MADAgent(reactor, openMADPort(reactor, address)):  # which coordinates port 4791 of the address
            self.description = f"{address}:qpn=1"
            await self.check(40)


class IbsimTests(PortCase):
    """A client of ibsim."""

    blocksBecause = "It waits for the answers of a thread."

    def setUp(self) -> None:
        base = f"txrdma-calls-{os.getpid()}"
        self.fabric = _Ibsim(base)
        self.addCleanup(self.fabric.stop)
        self.description = f"ibsim:socket={base}"

    def opened(self, agent: MADAgent) -> None:
        self.assertEqual((agent.port.endPort.lid, agent.port.endPort.portGUID), (3, GUID.fromInt(6)))

    async def test_each(self) -> None:
        """A call that fails ends the opening with an error of txrdma, or is repeated, and leaves nothing."""
        await self.check(15)
        self.fabric.finish()
        self.assertLessEqual(len(self.fabric.clients), 2)  # of ends whose DISCONNECT could not be sent
