"""
The promises of L{txrdma.interfaces.IMADPort}, as a mixin for test cases.

Written with two ports that reach each other: datagrams go from the first to the second, and answers back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, TYPE_CHECKING

from zope.interface import implementer
from zope.interface.verify import verifyObject

from txrdma.error import DeviceUnavailable, InvalidRequest, RDMAError, ResourceExhausted
from txrdma.iba.path import IBDRPath, IBPath
from txrdma.iba.types import GID, GUID, LID, QPN
from txrdma.interfaces import IMADHandler, IMADPort, IMADReceiver
from txrdma.mad.agent import MADAgent
from txrdma.mad.core.frames import frame
from txrdma.mad.layouts.attributes import Attribute, ManagementClass, Method
from txrdma.mad.layouts.messages import MAD_LENGTH, MADRequest
from txrdma.mad.layouts.pma import PortCounters
from txrdma.mad.layouts.smp import SMInfo
from txrdma.mad.server import MADServer

if TYPE_CHECKING:
    from twisted.trial.unittest import SynchronousTestCase

    Base = SynchronousTestCase
else:
    Base = object


class Stumble(Exception):
    """Raised by receivers of tests, as by a program with a bug."""


@implementer(IMADHandler)
class Constant:
    """
    A handler that answers every request alike.

    @ivar count: how many there were.
    """

    def __init__(self, answer: Attribute) -> None:
        self.count = 0
        self._answer = answer

    def handle(self, request: MADRequest) -> object:
        """Answer a request, whatever it asks for."""
        self.count += 1
        return self._answer


@implementer(IMADReceiver)
class Receiver:
    """
    Keeps what a port brings.

    @ivar datagrams: what has come, with its envelope.
    @ivar undelivered: what the system said of datagrams that went nowhere.
    @ivar losses: why the port was lost, each time that it said so.
    @ivar changes: of each change of the port, whether clients are to register again.
    @ivar then: called with each datagram; may raise, or close the port.
    """

    def __init__(self) -> None:
        self.datagrams: list[tuple[bytes, object]] = []
        self.undelivered: list[bytes] = []
        self.losses: list[str] = []
        self.changes: list[bool] = []
        self.then: Callable[[bytes], None] = lambda datagram: None

    def received(self, datagram: bytes, envelope: object) -> None:
        """Keep a datagram, then do what the test wants, as L{IMADReceiver.received}."""
        if type(envelope) is tuple:  # a part of what is read next
            envelope = (bytes(envelope[0]), envelope[1])
        self.datagrams.append((bytes(datagram), envelope))
        self.then(datagram)

    def undeliverable(self, datagram: bytes, reason: str) -> None:
        """Keep a datagram of ours that went nowhere, as L{IMADReceiver.undeliverable}."""
        self.undelivered.append(bytes(datagram))

    def portLost(self, reason: str) -> None:
        """Keep why the port was lost, as L{IMADReceiver.portLost}."""
        self.losses.append(reason)

    def portChanged(self, wantsRegistration: bool) -> None:
        """Keep that the port has changed, as L{IMADReceiver.portChanged}."""
        self.changes.append(wantsRegistration)


def request(number: int, method: int = Method.GET, managementClass: int = ManagementClass.SUBN_ADM) -> bytes:
    """A request of this transaction, for port counters or for what has the same number."""
    return frame(managementClass, method, number, PortCounters.attributeID, 0, b"")


def answered(datagram: bytes) -> bytes:
    """The answer to a request, with all that it says."""
    return datagram[:3] + bytes((datagram[3] | 0x80,)) + datagram[4:]


class MADPortContract(Base):
    """
    Promises of every management port.

    A suite inherits this and C{SynchronousTestCase}, and implements the first five methods.
    """

    def makePort(self, number: int) -> IMADPort:
        """Open the first (0) or the second (1) of two ports that reach each other."""
        raise NotImplementedError

    def pathTo(self, number: int) -> IBPath:
        """Lead to the general services of that port from the other one."""
        raise NotImplementedError

    def step(self) -> None:
        """Let a little time pass."""
        raise NotImplementedError

    def time(self) -> Any:
        """Keep time for agents; it passes in L{step}."""
        raise NotImplementedError

    def lose(self, number: int) -> None:
        """Take the device of that port away, as somebody who pulls it out."""
        raise NotImplementedError

    # What the promises are made of.

    def setUp(self) -> None:
        """Open both ports; the second serves requests."""
        super().setUp()
        self.receivers = Receiver(), Receiver()
        self.ports = self.makePort(0), self.makePort(1)
        for port, receiver in zip(self.ports, self.receivers, strict=True):
            self.addCleanup(port.close)
            port.start(receiver)
        self.ports[1].serve(ManagementClass.SUBN_ADM, (Method.GET, Method.SET))

    def until(self, condition: Callable[[], bool], steps: int = 2000) -> None:
        """Let time pass until something is so."""
        for _ in range(steps):
            if condition():
                return
            self.step()
        self.fail("it does not happen")

    def asked(self, number: int) -> tuple[bytes, object]:
        """Send a request from the first port; the second has it."""
        before = len(self.receivers[1].datagrams)
        self.ports[0].send(request(number), self.pathTo(1), 5.0)
        self.until(lambda: len(self.receivers[1].datagrams) > before)
        return self.receivers[1].datagrams[-1]

    def answer(self, datagram: bytes, envelope: object) -> tuple[bytes, object]:
        """Answer from the second port; the first has it."""
        before = len(self.receivers[0].datagrams)
        self.ports[1].send(answered(datagram), self.ports[1].pathOf(envelope).reverse())
        self.until(lambda: len(self.receivers[0].datagrams) > before)
        return self.receivers[0].datagrams[-1]

    # The promises.

    def test_provides(self) -> None:
        """A port provides L{IMADPort}, and says what it is."""
        for port in self.ports:
            verifyObject(IMADPort, port)
            self.assertEqual(port.refresh(), port.endPort)

    def test_conversation(self) -> None:
        """A request arrives as it was sent; its way leads back, and the answer has the request's number."""
        for number in range(1, 6):
            datagram, envelope = self.asked(number)
            self.assertEqual(datagram[1:4], request(number)[1:4])
            self.assertEqual(len(datagram), MAD_LENGTH)
            answer, _ = self.answer(datagram, envelope)
            bits = self.ports[0].transactionIDBits
            self.assertEqual(int.from_bytes(answer[8:16], "big") & (1 << bits) - 1, number)
            self.assertEqual(answer[3], Method.GET_RESP)

    def routes(self) -> Sequence[IBPath]:
        """Lead to subnet management of the second port, by its LID and by a directed route; or nowhere."""
        return ()

    def test_subnetManagement(self) -> None:
        """A request of subnet management is served, and answered by the way that it took, of either kind."""
        asking, asked = (MADAgent(self.time(), port, timeoutSeconds=1.0) for port in self.ports)
        answers = Constant(SMInfo(guid=GUID.fromInt(7), priority=9))
        server = MADServer(asked)
        for route in self.routes():
            managementClass = 0x81 if isinstance(route, IBDRPath) else 0x01
            end = server.handle(managementClass, answers, (Method.GET,))
            call = asking.SubnGet(SMInfo, route, retries=0)
            self.until(lambda call=call: call.called)  # type: ignore[misc]  # mypy knows no defaults of lambdas
            self.assertEqual(self.successResultOf(call).priority, 9)
            end()
        self.assertEqual(answers.count, len(self.routes()))

    def strangers(self) -> Sequence[IBPath]:
        """Lead to somebody else than the second port."""
        path = self.pathTo(1)
        if path.dgid is None:
            return (replace(path, dlid=LID(path.dlid ^ 0x80)),)
        return (replace(path, dgid=GID(path.dgid.raw[:15] + bytes((path.dgid.raw[15] ^ 0x80,)))),)

    def test_source(self) -> None:
        """An answer can be one of whom was asked, and of nobody else."""
        _, envelope = self.answer(*self.asked(5))
        self.assertTrue(self.ports[0].isFrom(envelope, self.pathTo(1)))
        for stranger in self.strangers():
            self.assertFalse(self.ports[0].isFrom(envelope, stranger))

    def test_badDestination(self) -> None:
        """However much is to be sent, a path that leads nowhere is an error of its datagram alone."""
        nowhere = IBPath(dlid=LID(0xBFFF), dqpn=QPN(1))
        for number in range(1, 400):
            try:
                self.ports[0].send(request(number), nowhere if number % 2 else self.pathTo(1))
            except (InvalidRequest, ResourceExhausted):
                pass
        self.until(lambda: len(self.receivers[1].datagrams) >= 199)
        self.answer(*self.asked(1000))
        self.assertEqual(self.receivers[0].losses, [])

    def test_receiverRaises(self) -> None:
        """A receiver that raises is logged, and hears of what comes next."""

        def stumble(datagram: bytes) -> None:
            raise Stumble

        for receiver in self.receivers:
            receiver.then = stumble
        for number in (1, 2, 3):
            self.answer(*self.asked(number))
        self.assertEqual(len(self.flushLoggedErrors(Stumble)), 6)

    def test_rubbish(self) -> None:
        """Datagrams of any content do no harm to the port that gets them."""
        random = Random(1)
        path = self.pathTo(1)
        for number in range(200):
            head = bytearray(random.randbytes(MAD_LENGTH))
            if number % 2:
                head[:4] = request(1)[:4]
            try:
                self.ports[0].send(bytes(head), path)
            except RDMAError:
                pass  # no class of this port
            self.step()
        self.receivers[1].datagrams.clear()
        self.asked(77)

    def test_closing(self) -> None:
        """A port that is closed sends no more and brings no more; closing twice is fine, and no loss."""
        port, receiver = self.ports[1], self.receivers[1]
        self.ports[0].send(request(1), self.pathTo(1))
        port.close()
        port.close()
        for _ in range(20):
            self.step()
        self.assertEqual(receiver.datagrams, [])
        self.assertEqual(receiver.losses, [])
        self.assertRaises(DeviceUnavailable, port.send, request(2), self.pathTo(0))

    def test_closingInReceiver(self) -> None:
        """A receiver that closes the port hears nothing more, though more has come."""
        port, receiver = self.ports[1], self.receivers[1]
        receiver.then = lambda datagram: port.close()
        for number in range(1, 9):
            self.ports[0].send(request(number), self.pathTo(1))
        self.until(lambda: bool(receiver.datagrams))
        for _ in range(20):
            self.step()
        self.assertEqual(len(receiver.datagrams), 1)

    def test_lost(self) -> None:
        """A device that is taken away is a port lost, which is said once; nothing can be sent any more."""
        port, receiver = self.ports[0], self.receivers[0]
        self.lose(0)
        for number in range(1, 20):
            try:
                port.send(request(number), self.pathTo(1))
            except RDMAError:
                pass
            self.step()
        self.until(lambda: bool(receiver.losses))
        self.assertRaises(DeviceUnavailable, port.send, request(99), self.pathTo(1))
        port.close()
        self.assertEqual(len(receiver.losses), 1)
