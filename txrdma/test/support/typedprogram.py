"""
A program with static types, which C{make types} also checks without the plugin for zope.interface.

It is never executed. Each C{assert_type} is a guarantee to programs that use public names.
"""

from __future__ import annotations

from array import array
from typing import Any

from typing_extensions import assert_type

from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from txrdma.btl import aio, answers, connect, Group, listen
from txrdma.btl.transport import BTLMessageTransport
from txrdma.cm import (
    DatagramClientEndpoint,
    DatagramProtocol,
    DatagramServerEndpoint,
    IBClientEndpoint,
    RDMAClientEndpoint,
    RDMAProtocol,
    RDMAServerEndpoint,
)
from txrdma.iba.path import IBDRPath, IBPath
from txrdma.iba.types import LID
from txrdma.mad import MADAgent, MADSchedule, openMADPort
from txrdma.mad.layouts.baseboard import ReadVPD
from txrdma.mad.layouts.sa import PathRecord
from txrdma.mad.layouts.smp import NodeInfo, PortInfo
from txrdma.messages.protocol import MessageFactory, MessageProtocol
from txrdma.verbs.devices import openDevice

NUMBERS = array("d", [1.0, 2.0])


class Matrix:
    """Known to checkers for Python 3.11 as NumPy's arrays are."""

    __array_interface__: dict[str, Any]


MATRIX = Matrix()


class Answering(MessageProtocol):
    """Answers calls and shares memory."""

    transport: BTLMessageTransport

    def connectionMade(self) -> None:
        self.memory = self.transport.share(NUMBERS)
        self.transport.sendMessage(self.memory.name)

    @answers(1)
    def twice(self, data: bytes) -> bytes:
        return data * 2

    @answers(2)
    async def later(self, data: bytes) -> bytes:
        return data


class Sharing(RDMAProtocol):
    """Sends and shares buffers of any kind, and accesses the peer's memory."""

    def connectionMade(self) -> None:
        memory = self.transport.share(NUMBERS)
        self.transport.sendMessage(memoryview(memory.name))
        self.transport.write(memory.name, NUMBERS)

    async def use(self, name: bytes) -> None:
        assert_type(await self.transport.read(name, 8), bytes)
        assert_type(await self.transport.compareAndSwap(name, 1, 2), int)

    def connectionLost(self, reason: Failure) -> None:
        print(reason.getErrorMessage())


class Asking(DatagramProtocol):
    """Sends a datagram."""

    def startProtocol(self) -> None:
        self.transport.write(NUMBERS)


async def useTransferLayer(reactor: Any, answering: Answering) -> None:
    assert_type(answering.twice(b""), bytes)
    assert_type(await answering.later(b""), bytes)
    await listen(reactor, 0, MessageFactory(Answering))
    assert_type(await connect(reactor, "127.0.0.1", 5), MessageProtocol)
    made = await connect(reactor, "127.0.0.1", 5, MessageFactory(Answering), openDevice(reactor, "soft"))
    assert_type(made, Answering)
    assert_type(made.transport.getPeer().port, int)
    assert_type(await made.transport.receive(3), bytes)
    assert_type(await made.transport.receive(3, into=bytearray(9)), int)
    assert_type(await made.transport.call(1, NUMBERS), bytes)
    await made.transport.sendMany(3, [b"one", bytearray(2), NUMBERS, MATRIX])
    assert_type(await made.transport.receive(3, into=MATRIX), int)
    await made.transport.send(3, MATRIX)
    made.transport.sendMessage(made.transport.share(MATRIX).name)


async def useGroup(reactor: Any) -> None:
    group = assert_type(await Group.join(reactor), Group)
    assert_type(await group.broadcast(NUMBERS), "array[float]")
    assert_type(await group.allreduce(b"", "sum", NUMBERS), "array[float]")
    assert_type(await group.allreduce(b"", into=NUMBERS), "array[float]")
    assert_type(await group.allreduce(NUMBERS), Any)
    assert_type(await group.broadcast(MATRIX), Matrix)
    assert_type(await group.allreduce(MATRIX, "sum", MATRIX), Matrix)


async def useCoroutines(connection: aio.Connection) -> None:
    assert_type(await connection.receive(1), bytes)
    assert_type(await connection.receive(1, into=bytearray(9)), int)


async def useConnectionManager(reactor: Any) -> None:
    factory = MessageFactory(Sharing)
    await RDMAServerEndpoint(reactor, 5, "soft").listen(factory)
    assert_type(await RDMAClientEndpoint(reactor, "127.0.0.1", 5).connect(factory), Sharing)
    assert_type(await IBClientEndpoint(reactor, 5, IBPath(dlid=LID(7))).connect(factory), Sharing)
    await DatagramServerEndpoint(reactor, 5, "soft").listen(MessageFactory(Asking))
    asking = await DatagramClientEndpoint(reactor, "127.0.0.1", 5).connect(MessageFactory(Asking))
    assert_type(asking, Asking)


async def useManagement(reactor: IReactorTime) -> None:
    agent = MADAgent(reactor, openMADPort(reactor))
    assert_type(await agent.SubnGet(NodeInfo, IBDRPath(drPath=(1,))), NodeInfo)
    assert_type(await MADSchedule(agent).SubnGet(PortInfo(), IBDRPath(drPath=(1,)), 3), PortInfo)
    assert_type(await agent.SubnAdmGetTable(PathRecord.query(dlid=LID(7))), list[PathRecord])


def vitalProductData(answer: ReadVPD) -> bytes:
    return answer.content
