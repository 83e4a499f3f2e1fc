"""A scripted peer for an agent, and assertions about the state of the agent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.interfaces import IMADReceiver
from txrdma.mad.agent import MADAgent
from txrdma.mad.layouts.attributes import Method
from txrdma.mad.layouts.messages import RMPPHeader, RMPPStatus, RMPPType
from txrdma.mad.layouts.smp import NodeDescription
from txrdma.test.support.mad.pairs import pass_, TO_2, Wire, WiredPort

E = TypeVar("E", bound=Exception)

TIMEOUT = 0.5
RETRIES = 2


@implementer(IMADReceiver)
class Peer:
    """
    A peer that answers as the test defines.

    @ivar respond: returns any number of datagrams as the answer to one.
    @ivar asked: received datagrams.
    """

    def __init__(self, port: WiredPort) -> None:
        self.respond: Callable[[bytes], Iterable[bytes]] = lambda datagram: ()
        self.asked: list[bytes] = []
        self.port = port
        port.start(self)

    def received(self, datagram: bytes, envelope: object) -> None:
        self.asked.append(datagram)
        for answer in self.respond(datagram):
            self.port.send(answer, self.port.pathOf(envelope).reverse())

    def undeliverable(self, datagram: bytes, reason: str) -> None:
        raise AssertionError("the peer sends no requests")

    def portLost(self, reason: str) -> None:
        raise AssertionError("the port is never lost")

    def portChanged(self, mustRegister: bool) -> None:
        raise AssertionError("the port never changes")


def answer(request: bytes, **changed: bytes) -> bytes:
    """
    Return a valid answer to a request, with changed bytes.

    @param changed: C{at3=b"x"} puts that at byte 3.
    """
    method = {Method.TRAP: Method.TRAP_REPRESS, Method.SET: Method.GET_RESP}.get(
        Method(request[3]), request[3] | 0x80
    )
    output = bytearray(request)
    output[3] = method
    for where, content in changed.items():
        at = int(where.removeprefix("at"))
        output[at : at + len(content)] = content
    return bytes(output)


def header(kind: int, number: int = 0, length: int = 0, flags: int = 1, status: int = 0) -> bytes:
    """Return the RMPP header of a packet. C{flags}: 1 active, 2 first, 4 last."""
    return RMPPHeader(
        version=1,
        type=RMPPType(kind),
        responseTime=0x1F,
        active=bool(flags & 1),
        first=bool(flags & 2),
        last=bool(flags & 4),
        status=RMPPStatus(status),
        data1=number,
        data2=length,
    ).encode()


def segments(request: bytes, content: bytes, distance: int = 112) -> list[bytes]:
    count = max(1, -(-len(content) // 200))
    made = []
    for number in range(1, count + 1):
        part = content[(number - 1) * 200 : number * 200]
        flags = 1 | (2 if number == 1 else 0) | (4 if number == count else 0)
        length = len(part) + 20 if number == count else len(content) + 20 * count if number == 1 else 0
        made.append(
            answer(
                request,
                at24=header(1, number, length, flags),
                at44=(distance // 8).to_bytes(2, "big"),
                at56=part.ljust(200, b"\0"),
            )
        )
    return made


class FaultTestCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.wire = Wire(self.clock)
        self.agent = MADAgent(self.clock, self.wire.ports[0], timeoutSeconds=TIMEOUT, retries=RETRIES)
        self.peer = Peer(self.wire.ports[1])
        self.bystander = self.agent.SubnGet(NodeDescription, TO_2, timeoutSeconds=10_000)
        pass_(self.clock, 0.01)
        (self.bystanding,) = self.peer.asked
        self.peer.asked.clear()

    def ended(self, call: Deferred[Any], seconds: float = 2 * TIMEOUT * (RETRIES + 1)) -> Deferred[Any]:
        pass_(self.clock, seconds, 0.005)
        return call

    def fails(self, call: Deferred[Any], kind: type[E], words: str = "", **options: float) -> E:
        error = self.failureResultOf(self.ended(call, **options), kind).value
        self.assertIn(words, str(error))
        assert isinstance(error, kind)
        self.nothingIsLeft()
        return error

    def succeeds(self, call: Deferred[Any], **options: float) -> Any:
        result = self.successResultOf(self.ended(call, **options))
        self.nothingIsLeft()
        return result

    def nothingIsLeft(self) -> None:
        """Check that the other call is answered, and no transaction, timer or partial message remains."""
        self.assertNoResult(self.bystander)
        pass_(self.clock, 60, 0.5)
        self.assertNoResult(self.bystander)
        self.agent.received(answer(self.bystanding, at64=b"undisturbed"), TO_2)
        self.assertEqual(self.successResultOf(self.bystander).text, "undisturbed")
        assertEmpty(self, self.agent)
        pass_(self.clock, 700, 10)
        self.assertEqual(self.agent._core._transfers._incoming, {})
        self.assertEqual(self.agent._core._transfers._outgoing, {})
        pass_(self.clock, 10_000, 1000)
        self.assertEqual(self.clock.getDelayedCalls(), [])


def assertEmpty(test: SynchronousTestCase, agent: MADAgent) -> None:
    test.assertIn(" 0 outstanding", repr(agent))
    test.assertEqual(agent._core._transactions.open, {})
    test.assertEqual(agent._core._transactions._pausing, {})
    test.assertEqual([slot for slot in agent._core._transactions._wheel._slots.values() if slot], [])
