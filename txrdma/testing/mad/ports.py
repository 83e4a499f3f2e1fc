"""
The promises of L{txrdma.interfaces.IMADPort}, as a mixin for test cases.

The tests use two ports that reach each other: the first sends requests, the second sends responses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random
from typing import Any

from zope.interface import implementer
from zope.interface.verify import verifyObject

from txrdma.error import DeviceUnavailable, InvalidRequest, RDMAError, ResourceExhausted
from txrdma.iba.path import IBDRPath, IBPath
from txrdma.iba.types import GID, GUID, LID, QPN
from txrdma.interfaces import IMADHandler, IMADPort, IMADReceiver
from txrdma.mad import portwatch
from txrdma.mad.agent import MADAgent
from txrdma.mad.core.frames import frame
from txrdma.mad.layouts.attributes import Attribute, ManagementClass, Method
from txrdma.mad.layouts.messages import MAD_LENGTH, MADRequest
from txrdma.mad.layouts.pma import PortCounters
from txrdma.mad.layouts.sa import NodeRecord
from txrdma.mad.layouts.smp import SMInfo
from txrdma.mad.portwatch import PortEvent, PortLost, PortReturned
from txrdma.mad.server import MADServer
from txrdma.testing.reactors import Base

QUESTIONS = 3
"""Number of requests of a conversation, some of which are in flight at each of its steps."""

STEPS = 8
"""Number of time steps of a conversation at which ports are closed; more would slow down the tests."""

RETURN_SECONDS = 0.2
"""Seconds between attempts of the tests' agents to reopen a lost port, and between their checks of it."""


class InjectedException(Exception):
    """Raised by receivers of tests, like an error of a program."""


@implementer(IMADHandler)
class Constant:
    """
    A handler that returns the same response to every request.

    @ivar count: number of requests.
    """

    def __init__(self, answer: Attribute) -> None:
        self.count = 0
        self._answer = answer

    def handle(self, request: MADRequest) -> object:
        self.count += 1
        return self._answer


@implementer(IMADReceiver)
class Receiver:
    """
    Records what a port receives and reports.

    @ivar datagrams: received datagrams, each with its envelope.
    @ivar undelivered: sent datagrams that were reported as undeliverable.
    @ivar losses: reasons of all reported losses of the port.
    @ivar changes: for each change of the port, whether clients must register again.
    @ivar then: called with each datagram; may raise, or close the port.
    @ivar whenLost: called when the port is lost.
    """

    def __init__(self) -> None:
        self.datagrams: list[tuple[bytes, object]] = []
        self.undelivered: list[bytes] = []
        self.losses: list[str] = []
        self.changes: list[bool] = []
        self.then: Callable[[bytes], None] = lambda datagram: None
        self.whenLost: Callable[[], None] = lambda: None

    def received(self, datagram: bytes, envelope: object) -> None:
        if type(envelope) is tuple:  # its buffer is reused
            envelope = (bytes(envelope[0]), envelope[1])
        self.datagrams.append((bytes(datagram), envelope))
        self.then(datagram)

    def undeliverable(self, datagram: bytes, reason: str) -> None:
        self.undelivered.append(bytes(datagram))

    def portLost(self, reason: str) -> None:
        self.losses.append(reason)
        self.whenLost()

    def portChanged(self, mustRegister: bool) -> None:
        self.changes.append(mustRegister)

    def of(self, number: int) -> tuple[bytes, object] | None:
        """Return the datagram with this transaction ID, of which ports may change the upper half."""
        for datagram, envelope in self.datagrams:
            if int.from_bytes(datagram[12:16], "big") == number:
                return datagram, envelope
        return None


def request(number: int, method: int = Method.GET, managementClass: int = ManagementClass.SUBN_ADM) -> bytes:
    """Return a request with this transaction ID, for the attribute with the number of C{PortCounters}."""
    return frame(managementClass, method, number, PortCounters.attributeID, 0, b"")


def answered(datagram: bytes) -> bytes:
    """Return the response to a request, with the same content."""
    return datagram[:3] + bytes((datagram[3] | 0x80,)) + datagram[4:]


class MADPortContract(Base):
    """
    Promises of every management port.

    A suite inherits this and C{SynchronousTestCase}, and implements the methods up to L{routes}.
    """

    def makePort(self, number: int) -> IMADPort:
        """Open the first (0) or the second (1) of two ports that reach each other."""
        raise NotImplementedError

    def pathTo(self, number: int) -> IBPath:
        """Return the path to the general services of that port from the other one."""
        raise NotImplementedError

    def step(self) -> None:
        """Let a short time pass."""
        raise NotImplementedError

    def time(self) -> Any:
        """Return the clock for agents; it advances in L{step}."""
        raise NotImplementedError

    def lose(self, number: int) -> None:
        """Remove the device of that port, as if it were unplugged; the other port may be lost, too."""
        raise NotImplementedError

    def restore(self, number: int) -> None:
        """Restore what L{lose} has removed, so that the port can be reopened."""
        raise NotImplementedError

    def routes(self) -> Sequence[IBPath]:
        """
        Return paths to subnet management of the second port: by its LID, and by a directed route.

        Ports without subnet management refuse requests on these paths.
        """
        return IBPath(dlid=LID(1)), IBDRPath(drPath=(1,))

    # Helpers.

    def setUp(self) -> None:
        """Open both ports; the second serves requests."""
        super().setUp()
        self.numbers = count(1)
        self.receivers = [Receiver(), Receiver()]
        self.ports = [self.makePort(0), self.makePort(1)]
        for number in (0, 1):
            self.begin(number)

    def begin(self, number: int) -> None:
        """Start a port with a new receiver; the second port serves requests."""
        port, self.receivers[number] = self.ports[number], Receiver()
        self.addCleanup(port.close)
        port.start(self.receivers[number])
        if number == 1:
            self.endServing = port.serve(ManagementClass.SUBN_ADM, (Method.GET, Method.SET))

    def reopened(self, number: int) -> IMADPort:
        """Reopen the first or the second port, and return the new one."""
        port = self.ports[number] = self.makePort(number)
        self.addCleanup(port.close)
        return port

    def until(self, condition: Callable[[], bool], steps: int = 2000) -> None:
        """Let time pass until a condition is true; fail after this many steps."""
        for _ in range(steps):
            if condition():
                return
            self.step()
        self.fail("the condition remains false")

    def asked(self, number: int) -> tuple[bytes, object]:
        """Send a request from the first port; return it as the second port received it."""
        self.ports[0].send(request(number), self.pathTo(1), 5.0)
        return self.receivedBy(1, number)

    def answer(self, datagram: bytes, envelope: object) -> tuple[bytes, object]:
        """Send a response from the second port; return it as the first port received it."""
        self.ports[1].send(answered(datagram), self.ports[1].pathOf(envelope).reverse())
        return self.receivedBy(0, int.from_bytes(datagram[12:16], "big"))

    def receivedBy(self, port: int, number: int) -> tuple[bytes, object]:
        """Let time pass until a port has received the datagram with this transaction ID, and return it."""
        receiver = self.receivers[port]
        self.until(lambda: receiver.of(number) is not None)
        come = receiver.of(number)
        assert come is not None
        return come

    # Tests.

    def test_provides(self) -> None:
        """A port provides L{IMADPort}, and reports its attributes."""
        for port in self.ports:
            verifyObject(IMADPort, port)
            self.assertEqual(port.refresh(), port.endPort)

    def test_conversation(self) -> None:
        """A request arrives unchanged; its path leads back, and the response has its transaction ID."""
        for number in range(1, 6):
            datagram, envelope = self.asked(number)
            self.assertEqual(datagram[1:4], request(number)[1:4])
            self.assertEqual(len(datagram), MAD_LENGTH)
            answer, _ = self.answer(datagram, envelope)
            bits = self.ports[0].transactionIDBits
            self.assertEqual(int.from_bytes(answer[8:16], "big") & (1 << bits) - 1, number)
            self.assertEqual(answer[3], Method.GET_RESP)

    def test_subnetManagement(self) -> None:
        """Ports with an SMI answer subnet management requests by both kinds of routes; others refuse them."""
        asking, asked = (MADAgent(self.time(), port, timeoutSeconds=1.0) for port in self.ports)
        routes = self.routes()
        self.assertEqual([isinstance(route, IBDRPath) for route in routes], [False, True])
        self.assertEqual(asking.port.hasSMI, asked.port.hasSMI)
        if not asking.port.hasSMI:
            for route in routes:
                self.failureResultOf(asking.SubnGet(SMInfo, route, retries=0), InvalidRequest)
            return
        answers = Constant(SMInfo(guid=GUID.fromInt(7), priority=9))
        server = MADServer(asked)
        for route in routes:
            managementClass = 0x81 if isinstance(route, IBDRPath) else 0x01
            end = server.handle(managementClass, answers, (Method.GET,))
            call = asking.SubnGet(SMInfo, route, retries=0)
            self.until(lambda call=call: call.called)  # type: ignore[misc]  # mypy knows no defaults of lambdas
            self.assertEqual(self.successResultOf(call).priority, 9)
            end()
        self.assertEqual(answers.count, 2)

    def wrongSources(self) -> Sequence[IBPath]:
        """Return paths to ports other than the second one."""
        path = self.pathTo(1)
        if path.dgid is None:
            return (replace(path, dlid=LID(path.dlid ^ 0x80)),)
        return (replace(path, dgid=GID(path.dgid.raw[:15] + bytes((path.dgid.raw[15] ^ 0x80,)))),)

    def test_source(self) -> None:
        """A response is accepted only from the destination of the request."""
        _, envelope = self.answer(*self.asked(5))
        self.assertTrue(self.ports[0].isFrom(envelope, self.pathTo(1)))
        for unknownPeer in self.wrongSources():
            self.assertFalse(self.ports[0].isFrom(envelope, unknownPeer))

    def test_badDestination(self) -> None:
        """Datagrams on a path without a destination fail, and affect no others, however many are sent."""
        nowhere = IBPath(dlid=LID(0xBFFF), dqpn=QPN(1))
        for number in range(1, 400):
            try:
                self.ports[0].send(request(number), nowhere if number % 2 else self.pathTo(1))
            except (InvalidRequest, ResourceExhausted):
                pass
        self.until(lambda: len(self.receivers[1].datagrams) >= 199)
        self.answer(*self.asked(1000))
        self.assertEqual(self.receivers[0].losses, [])

    def test_impossibleLID(self) -> None:
        """A request to a LID of more than 16 bits is refused or lost, and the port can still send others."""
        for lid in (-1, 1 << 16):
            try:
                self.ports[0].send(request(1), IBPath(dlid=LID(lid), dqpn=QPN(1)))
            except InvalidRequest:
                pass
        self.answer(*self.asked(2))

    def test_receiverRaises(self) -> None:
        """An exception of a receiver is logged, and the receiver gets the next datagrams."""

        def failing(datagram: bytes) -> None:
            raise InjectedException

        for receiver in self.receivers:
            receiver.then = failing
        for number in (1, 2, 3):
            self.answer(*self.asked(number))
        self.assertEqual(len(self.flushLoggedErrors(InjectedException)), 6)

    def test_rubbish(self) -> None:
        """Datagrams of any content do not affect the port that receives them."""
        random = Random(1)
        path = self.pathTo(1)
        for number in range(200):
            head = bytearray(random.randbytes(MAD_LENGTH))
            if number % 2:
                head[:4] = request(1)[:4]
            try:
                self.ports[0].send(bytes(head), path)
            except RDMAError:
                pass  # the port does not support this class
            self.step()
        self.receivers[1].datagrams.clear()
        self.asked(77)

    # Closing.

    def converse(self, interrupt: Callable[[], None]) -> None:
        """Exchange requests and responses, and call C{interrupt} before, within and after each step."""
        asking, asked = self.ports
        first, second = self.receivers

        def send(port: IMADPort, datagram: bytes, path: IBPath, seconds: float = 0.0) -> None:
            interrupt()
            try:
                port.send(datagram, path, seconds)
            except DeviceUnavailable:
                pass  # the port was closed on purpose
            interrupt()

        def arrived(datagram: bytes) -> None:
            if not datagram[3] & 0x80:
                send(asked, answered(datagram), asked.pathOf(second.datagrams[-1][1]).reverse())

        first.then = lambda datagram: interrupt()
        second.then = arrived
        numbers = [next(self.numbers) for _ in range(QUESTIONS)]
        for number in numbers:
            send(asking, request(number), self.pathTo(1), 5.0)
        for step in range(20 * STEPS):
            if all(first.of(number) for number in numbers) or (step > 2 * STEPS and self.isClosed):
                break
            if step < STEPS:
                interrupt()
            self.step()
        interrupt()
        first.then = second.then = lambda datagram: None

    isClosed = False

    def closeAt(self, number: int, interrupt: int) -> None:
        """Close a port at a given point of a conversation; check that it is silent and can be reopened."""
        port, receiver = self.ports[number], self.receivers[number]
        passed = count()
        receivedBy = -1

        def passing() -> None:
            nonlocal receivedBy
            if next(passed) == interrupt:
                port.close()
                self.isClosed = True
                receivedBy = len(receiver.datagrams)

        self.isClosed = False
        self.converse(passing)
        if receivedBy < 0:  # the conversation had fewer points
            port.close()
            receivedBy = len(receiver.datagrams)
        port.close()
        what = f"port {number}, closed at point {interrupt}"
        for _ in range(5):
            self.step()
        self.assertEqual(len(receiver.datagrams), receivedBy, what)
        self.assertEqual([each.losses for each in self.receivers], [[], []], what)
        self.assertRaises(DeviceUnavailable, port.send, request(next(self.numbers)), self.pathTo(1 - number))
        self.reopened(number)
        self.begin(number)
        self.answer(*self.asked(next(self.numbers)))

    def test_closing(self) -> None:
        """A port closed twice at any point of a conversation is silent, is not lost, and can be reopened."""
        passed: list[None] = []
        self.converse(lambda: passed.append(None))
        last = len(passed)
        self.assertGreater(last, 4 * QUESTIONS)
        for number in (0, 1):
            for interrupt in range(last):
                self.closeAt(number, interrupt)

    def test_closingUnused(self) -> None:
        """A port that was never started can be closed, twice, and reopened."""
        for number in (0, 1):
            self.ports[number].close()
            port = self.makePort(number)
            port.close()
            port.close()
            self.assertRaises(DeviceUnavailable, port.send, request(1), self.pathTo(1 - number))
            self.reopened(number)
            self.begin(number)
        self.answer(*self.asked(next(self.numbers)))

    # Loss and return.

    def test_lost(self) -> None:
        """The loss of a port's device is reported once; then the port sends nothing, and can be closed."""
        port, receiver = self.ports[0], self.receivers[0]
        receiver.whenLost = port.close
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
        self.step()
        self.assertEqual(len(receiver.losses), 1)

    def returning(self, number: int) -> None:
        """Remove an agent's port and restore it; calls between two agents must be answered again."""
        self.patch(portwatch, "RETURN_SECONDS", RETURN_SECONDS)
        self.endServing()
        agents = [
            MADAgent(
                self.time(),
                port,
                timeoutSeconds=0.5,
                retries=1,
                reopen=partial(self.reopened, n),
                watchSeconds=RETURN_SECONDS,
            )
            for n, port in enumerate(self.ports)
        ]
        reported: list[list[PortEvent]] = [[], []]
        for agent, events in zip(agents, reported, strict=True):
            self.addCleanup(agent.close)
            agent.watch(events.append)
        answers = Constant(NodeRecord(lid=LID(7)))
        MADServer(agents[1]).handle(ManagementClass.SUBN_ADM, answers, (Method.GET,))
        agent, lost, events = agents[number], self.ports[number], reported[number]
        self.until(self.asking(agents[0]))

        self.lose(number)
        self.until(lambda: any(isinstance(event, PortLost) for event in events))
        self.failureResultOf(agent.SubnAdmGet(NodeRecord, self.pathTo(1)), DeviceUnavailable)
        for _ in range(5):
            self.step()
        self.restore(number)
        self.until(lambda: any(isinstance(event, PortReturned) for event in events), 5000)
        self.assertEqual([type(event) for event in events[:2]], [PortLost, PortReturned])
        self.assertIs(agent.port, self.ports[number])
        count = answers.count
        self.until(self.asking(agents[0]), 5000)
        self.assertGreater(answers.count, count)
        self.assertRaises(DeviceUnavailable, lost.send, request(99), self.pathTo(1 - number))

    def asking(self, agent: MADAgent) -> Callable[[], bool]:
        """Send requests to the second port; return a function that returns whether one was answered."""
        calls = [agent.SubnAdmGet(NodeRecord, self.pathTo(1))]

        def isAnswered() -> bool:
            if not calls[-1].called:
                return False
            answer = getattr(calls[-1], "result", None)
            if isinstance(answer, NodeRecord):
                return answer.lid == 7
            self.failureResultOf(calls[-1], RDMAError)
            calls.append(agent.SubnAdmGet(NodeRecord, self.pathTo(1)))
            return False

        return isAnswered

    def test_returnOfAsking(self) -> None:
        """The agent of a port that was lost and restored reopens it, and its calls are answered again."""
        self.returning(0)

    def test_returnOfServing(self) -> None:
        """The agent of a serving port that was lost and restored reopens it, and serves as before."""
        self.returning(1)
