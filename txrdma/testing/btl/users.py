"""
Simulations of programs that use connections of the byte transfer layer, with checks of its promises.

Two hosts have one or more connections, over a network with faults. The programs call the API at random: also
from callbacks, with buffers that are too short, after the end, and with clocks that are set. Every message is
delivered at most once, in the order that is documented, and if its Deferred has fired, it has arrived. Every
Deferred fires. A connection that nobody has ended loses nothing; when all messages are received, no window,
queue or table has anything left. No unexpected exception is logged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any, Final
from unittest import mock

from zope.interface import implementer

from twisted.internet.defer import CancelledError, Deferred, TimeoutError
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IPushProducer
from twisted.python.failure import Failure

from txrdma.btl import lifeline as lifelineModule
from txrdma.btl import memory as memoryModule
from txrdma.btl import module as moduleModule
from txrdma.btl import probes as probesModule
from txrdma.btl import requests as requestsModule
from txrdma.btl import transport as transportModule
from txrdma.btl.connections import PeerOpening
from txrdma.btl.core import flow as flowModule
from txrdma.btl.errors import CallFailed, MessageFailed
from txrdma.btl.transport import BTLMessageTransport
from txrdma.error import InvalidRequest
from txrdma.messages.memory import SharedMemory
from txrdma.messages.protocol import MessageFactory, MessageProtocol
from txrdma.sim.network import Faults
from txrdma.testing.btl.userplans import Act, ActPlan, EVENTS, TAGS, UsersPlan
from txrdma.testing.outcome import check, Outcome
from txrdma.testing.programs import (
    checkReleased,
    LONGEST_TROUBLE,
    ProgramError,
    ProgramScenario,
)
from txrdma.testing.smc.hosts import connectedSockets, Host, MemorySocket, MemoryTCP
from txrdma.testing.smc.neighbours import ticking

_SHARED: Final = 16_384
_SHORT: Final = 60
_MOST_AT_ONCE: Final = 50_000
_LATE_SECONDS: Final = 0.02
_RECEIVES: Final = (Act.RECEIVE, Act.INTO, Act.ALL, Act.GIVE_BACK)
_MOST_REACTIONS: Final = 5
_NUMBER: Final = 4


@dataclass
class Sending:
    """
    A message that a program has sent.

    @ivar tag: its tag; None for a message without a tag.
    @ivar outcome: name of the reported result, if there was one; C{deliveries}: number of its deliveries.
    """

    number: int
    sender: User
    tag: int | None
    isUrgent: bool
    data: bytes
    outcome: str | None = None
    deliveries: int = 0

    def __repr__(self) -> str:
        return f"message {self.number} of {len(self.data)} bytes with tag {self.tag} from {self.sender!r}"


class User(MessageProtocol):
    """
    The program at one end of a connection.

    @ivar other: the program at the other end.
    @ivar results: Deferreds that the API has returned, with their calls; C{pending}: those that have not
        fired, C{receiving}: of these, numbers of receives by their tags.
    @ivar unordered: tags whose messages may be delivered in any order; C{dropping}: those whose messages may
        be dropped; C{handled}: those that have or had a handler.
    @ivar unused: buffers of receives that have failed.
    @ivar hasClosed: whether the program has closed the connection. Then it may lose messages that it has
        paused, and those that wait for a report which was lost: the peer does not send reports again.
    @ivar producer: the registered producer; None if there is none.
    @ivar lost: why the connection has ended.
    """

    transport: Any = None
    other: User

    def __init__(self, scenario: UserScenario, connection: Connection, host: Host, number: int) -> None:
        self.scenario, self.connection, self.host, self.number = scenario, connection, host, number
        self.lost: Failure | None = None
        self.shared: SharedMemory | None = None
        self.results: list[Deferred[Any]] = []
        self.pending: dict[Deferred[Any], Act] = {}
        self.receiving: Counter[int] = Counter()
        self.unordered: set[int | None] = set()
        self.dropping: set[int | None] = set()
        self.handled: set[int] = set()
        self.unused: list[bytearray] = []
        self.hasClosed = False
        self.producer: Producer | None = None
        self._latest: dict[tuple[int | None, bool], int] = {}
        self._written = 0
        self._reactions: Counter[ActPlan] = Counter()
        self._isReacting = False

    def __repr__(self) -> str:
        return f"end {self.number} of connection {self.connection.number}"

    # Calls of the transport

    def connectionMade(self) -> None:
        """Share memory, and set the handlers and functions that exist from the beginning."""
        plan, transport = self.scenario.plan, self.transport
        self.shared = shared = transport.share(_SHARED)
        shared.view[_SHARED // 2 :] = bytes((self.number + 1,)) * (_SHARED // 2)
        for tag in plan.handlers:
            self._setHandler(tag, partial(self._handle, tag, None), plan.ordered)
        transport.setHandler(TAGS, lambda data: None)
        for tag, function in enumerate((_reverse, self._reverseLater, _raise)):
            transport.answer(tag, function)
        for act in self.scenario.early:
            if (act.connection, act.end) == (self.connection.number, self.number):
                self.scenario.make(self, act)

    def refused(self, failure: Failure) -> None:
        """Record that the connection was not established, because the other end has ended it before."""
        self.scenario.require(self.connection.isDisturbed, f"{self!r} is not connected: {failure.value}")
        self.lost = failure

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        """Record a message without a tag."""
        self.delivered(None, data)

    def connectionLost(self, reason: Failure) -> None:
        check(self.lost is None, f"{self!r} ends twice")
        self.lost = reason

    def delivered(self, tag: int | None, data: bytes) -> None:
        """Check a message that was delivered."""
        number = int.from_bytes(data[:_NUMBER], "big")
        messages = self.scenario.messages
        self.scenario.require(number < len(messages), f"{self!r} gets a message that was not sent")
        message = messages[number]
        require = partial(self.scenario.require, what=f"{message!r} is delivered wrongly to {self!r}")
        require(message.sender is self.other and message.tag == tag and message.data == data)
        message.deliveries += 1
        require(message.deliveries == 1)
        if tag not in self.unordered:
            key = tag, message.isUrgent
            require(number > self._latest.get(key, -1))
            self._latest[key] = number

    # Calls of the API

    def act(self, plan: ActPlan) -> None:
        """Make a call."""
        self.scenario.counts[plan.act.name.lower()] += 1
        {
            Act.SEND: self._send,
            Act.PRIORITY: self._send,
            Act.MANY: self._sendMany,
            Act.MESSAGE: self._sendMessage,
            Act.CANCEL: self._cancel,
            Act.RECEIVE: self._receive,
            Act.INTO: self._receive,
            Act.ALL: self._receive,
            Act.GIVE_BACK: self._giveBack,
            Act.PRODUCE: self._produce,
            Act.HANDLER: self._handler,
            Act.ORDERED_HANDLER: self._handler,
            Act.RAISING_HANDLER: self._handler,
            Act.NO_HANDLER: self._handler,
            Act.CALL: self._call,
            Act.WRITE: self._write,
            Act.READ: self._read,
            Act.READY: lambda plan: self._watch(self.transport.ready(), plan),
            Act.PAUSE: self._pause,
            Act.RESUME: lambda plan: self.transport.resumeProducing(),
            Act.CLOSE: self._close,
            Act.ABORT: self._close,
        }[plan.act](plan)

    def _watch(
        self, result: Deferred[Any], plan: ActPlan, got: Callable[[Any], object] = lambda result: None
    ) -> None:
        """
        Record the result of a call, and react to it.

        @param got: called with the result, or with a failure.
        """
        self.results.append(result)
        self.pending[result] = plan.act

        def fired(value: Any) -> None:
            del self.pending[result]
            if isinstance(value, Failure):
                self._failed(value, plan)
            got(value)
            self.react(plan)

        result.addBoth(fired).addErrback(self.scenario.broken)

    def _failed(self, failure: Failure, plan: ActPlan) -> None:
        isExpected = {
            Act.INTO: (InvalidRequest,),
            Act.CALL: (CallFailed, TimeoutError),
        }.get(plan.act, ())
        if failure.check(CancelledError, *isExpected) is None:
            isEnd = failure.check(MessageFailed) is not None
            what = f"{plan.act.name} of {self!r} fails: {failure.getErrorMessage()}"
            self.scenario.require(isEnd and self.connection.isDisturbed, what)

    def react(self, plan: ActPlan) -> None:
        """Make the call that a callback makes; its own callbacks make none."""
        if plan.reaction is not None and self._reactions[plan] < _MOST_REACTIONS:
            self._reactions[plan] += 1
            self.act(_reactionOf(plan))

    def _message(self, plan: ActPlan, tag: int | None) -> Sending:
        messages = self.scenario.messages
        number = len(messages)
        data = number.to_bytes(_NUMBER, "big") + Random(f"message {number}").randbytes(plan.size - _NUMBER)
        messages.append(Sending(number, self, tag, plan.act is Act.PRIORITY, data))
        return messages[-1]

    def _send(self, plan: ActPlan) -> None:
        message = self._message(plan, plan.tag)
        send = self.transport.sendPriority if message.isUrgent else self.transport.send
        data = bytearray(message.data)
        result = send(plan.tag, data)
        if len(data) <= _SHORT:
            data[:] = bytes(len(data))  # short messages may be changed
        self._watch(result, plan, partial(_note, [message]))

    def _sendMany(self, plan: ActPlan) -> None:
        plan = replace(plan, size=min(plan.size, _MOST_AT_ONCE // (plan.number + 1)))
        messages = [self._message(plan, plan.tag) for _ in range(plan.number)]
        result = self.transport.sendMany(plan.tag, [each.data for each in messages])
        self._watch(result, plan, partial(_note, messages))

    def _sendMessage(self, plan: ActPlan) -> None:
        message = self._message(plan, None)
        immediate = plan.number or None

        def done(error: Exception | None) -> None:
            self.scenario.require(message.outcome is None, f"{message!r} has two results")
            message.outcome = "done" if error is None else "failed"
            self.scenario.require(error is None or self.connection.isDisturbed, f"{message!r} fails: {error}")
            self.react(plan)

        self.transport.sendMessage(message.data, immediate, done)

    def _cancel(self, plan: ActPlan) -> None:
        if plan.number < len(self.results):
            self.results[-1 - plan.number].cancel()

    def _pause(self, plan: ActPlan) -> None:
        if not self.scenario.isFinishing:
            self.transport.pauseProducing()

    def _receive(self, plan: ActPlan) -> None:
        tag, transport = plan.tag, self.transport
        memory = bytearray(plan.size) if plan.act is Act.INTO else None
        self.receiving[tag] += 1  # first: it may serve earlier calls, whose callbacks set handlers
        try:
            if plan.act is Act.ALL:
                result = transport.receiveMany(tag)
            else:
                result = transport.receive(tag) if memory is None else transport.receive(tag, memory)
        except InvalidRequest as error:
            self.receiving[tag] -= 1
            self.scenario.require(tag in self.handled, f"{self!r} cannot receive: {error}")
            return

        def got(value: Any) -> None:
            self.receiving[tag] -= 1
            if isinstance(value, Failure):
                self.unused += [] if memory is None else [memory]
            elif memory is not None:
                self.delivered(tag, bytes(memory[:value]))
            else:
                for each in value if isinstance(value, list) else [value]:
                    self.delivered(tag, each)

        self._watch(result, plan, got)

    def finish(self) -> None:
        """
        Receive all messages from now on.

        A message is sent, too, because a module notices only when it is used that its clock was set back.
        """
        self.transport.resumeProducing()
        self.transport.send(TAGS, b"").addErrback(lambda failure: None)
        for tag in range(TAGS):
            self.drain(tag)

    def _giveBack(self, plan: ActPlan) -> None:
        tag, transport = plan.tag, self.transport
        if tag in self.handled:
            return
        self.receiving[tag] += 1

        def got(value: Any) -> None:
            self.receiving[tag] -= 1
            if not isinstance(value, Failure):
                transport.giveBack(tag, [value])

        self._watch(transport.receive(tag), plan, got)

    def _produce(self, plan: ActPlan) -> None:
        if self.producer is None:
            self.producer = producer = Producer(self, plan)
            self.transport.registerProducer(producer, producer.isPush)
            if producer.isPush:
                producer.resumeProducing()

    def sendProduced(self, plan: ActPlan) -> None:
        """Send a message of a producer."""
        message = self._message(plan, plan.tag)
        self.transport.post(plan.tag, message.data, partial(self._posted, message))

    def _posted(self, message: Sending, error: Exception | None) -> None:
        message.outcome = "done" if error is None else "failed"
        self.scenario.require(error is None or self.connection.isDisturbed, f"{message!r} fails: {error}")

    def drain(self, tag: int) -> None:
        """Receive all messages of a tag without a handler, until the connection has ended."""
        if tag in self.handled:
            return

        def got(data: bytes) -> None:
            self.delivered(tag, data)
            self.host.callLater(0, self.drain, tag)

        self.receiving[tag] += 1
        result = self.transport.receive(tag)
        self.pending[result] = Act.RECEIVE
        result.addBoth(self._forget, result, tag)
        result.addCallbacks(got, lambda failure: failure.trap(MessageFailed))
        result.addErrback(self.scenario.broken)

    def _forget(self, value: Any, result: Deferred[Any], tag: int) -> Any:
        del self.pending[result]
        self.receiving[tag] -= 1
        return value

    def _handler(self, plan: ActPlan) -> None:
        tag = plan.tag
        hasDropped = plan.act is Act.NO_HANDLER
        handler = None if hasDropped else partial(self._handle, tag, plan)
        self._setHandler(tag, handler, plan.act is Act.ORDERED_HANDLER)

    def _setHandler(self, tag: int, handler: Callable[[memoryview], None] | None, isOrdered: bool) -> None:
        properties: list[set[Any]] = [self.handled]
        if not isOrdered:
            properties.append(self.unordered)
        if handler is None:
            properties.append(self.dropping)
        added = [tags for tags in properties if tag not in tags]
        for tags in added:
            tags.add(tag)  # first: the handler is called with messages that have arrived
        try:
            self.transport.setHandler(tag, handler, isOrdered)
        except InvalidRequest as error:
            self.scenario.require(self.receiving[tag] > 0, f"{self!r} cannot set a handler: {error}")
            for tags in added:
                tags.discard(tag)

    def _handle(self, tag: int, plan: ActPlan | None, data: memoryview) -> None:
        self.delivered(tag, bytes(data))
        if plan is None:
            return
        if plan.act is Act.RAISING_HANDLER:
            self.connection.isDisturbed = self.connection.isAborted = True
            raise ProgramError("a handler")
        if not self._isReacting:
            self._isReacting = True
            self.react(plan)
            self._isReacting = False

    def _call(self, plan: ActPlan) -> None:
        tag, data = plan.number % 3, Random(plan.size).randbytes(plan.size)

        def got(value: Any) -> None:
            if not isinstance(value, Failure):
                self.scenario.require(tag < 2 and value == data[::-1], f"{self!r} gets a wrong answer")
            elif value.check(CallFailed) is not None:
                self.scenario.require(tag == 2, f"a call fails: {value.getErrorMessage()}")

        timeout = _LATE_SECONDS if plan.number == 40 else None
        self._watch(self.transport.call(tag, data, timeout), plan, got)

    def _reverseLater(self, data: bytes) -> Deferred[bytes]:
        result: Deferred[bytes] = Deferred()

        def answer() -> None:
            if not result.called:  # the call was not cancelled
                result.callback(data[::-1])

        # By the common clock: that of the host may be set back.
        self.scenario.world.clock.callLater(_LATE_SECONDS, self.host.callLater, 0, answer)
        return result

    def _write(self, plan: ActPlan) -> None:
        end, memory = self._written + plan.size, self.other.shared
        if end > _SHARED // 2 or memory is None:
            return
        begin, self._written = self._written, end
        data = Random(begin).randbytes(plan.size)

        def got(value: Any) -> None:
            isRight = isinstance(value, Failure) or memory.view[begin:end] == data
            self.scenario.require(isRight, f"{self!r} has written other bytes")

        self._watch(self.transport.write(memory.name, data, begin), plan, got)

    def _read(self, plan: ActPlan) -> None:
        length, other, memory = min(plan.size, _SHARED // 2), self.other, self.other.shared
        if memory is None:
            return

        def got(value: Any) -> None:
            isRight = isinstance(value, Failure) or value == bytes((other.number + 1,)) * length
            self.scenario.require(isRight, f"{self!r} has read other bytes")

        self._watch(self.transport.read(memory.name, length, _SHARED // 2), plan, got)

    def _close(self, plan: ActPlan) -> None:
        self.connection.isDisturbed = self.hasClosed = True
        if plan.act is Act.CLOSE:
            self.transport.loseConnection()
        else:
            self.connection.isAborted = True
            self.transport.abortConnection()


def _reverse(data: bytes) -> bytes:
    return data[::-1]


def _raise(data: bytes) -> None:
    raise ProgramError("a function")


def _note(messages: list[Sending], value: Any) -> None:
    """Record the result of messages."""
    for each in messages:
        each.outcome = "done" if not isinstance(value, Failure) else type(value.value).__name__


def _reactionOf(plan: ActPlan) -> ActPlan:
    """Return the plan of a reaction, which has no reaction itself."""
    assert plan.reaction is not None
    return replace(plan, act=plan.reaction, reaction=None)


@implementer(IPushProducer)
class Producer:
    """
    A producer of some messages with a tag, which unregisters after the last one.

    @ivar isPush: whether it sends until it is paused, instead of one message for each call.
    """

    def __init__(self, user: User, plan: ActPlan) -> None:
        self._user, self._plan, self._left = user, plan, plan.number
        self.isPush, self._isPaused = plan.number % 2 == 0, False

    def resumeProducing(self) -> None:
        """Send messages until this is paused; a pull producer sends one."""
        self._isPaused = False
        while self._left and not self._isPaused and self._user.producer is self:
            self._left -= 1
            self._user.sendProduced(self._plan)
            if not self.isPush:
                break
        if not self._left and self._user.producer is self:
            self._user.producer = None
            self._user.transport.unregisterProducer()

    def pauseProducing(self) -> None:
        self._isPaused = True

    def stopProducing(self) -> None:
        """Note the end: the producer is not registered any more."""
        self._user.scenario.require(self._user.producer is self, "a producer is stopped twice")
        self._user.producer = None


class Connection:
    """
    A connection of the two hosts.

    @ivar isDisturbed: whether something has ended it, so that messages may fail; C{isAborted}: without regard
        to messages.
    """

    def __init__(self, scenario: UserScenario, number: int) -> None:
        self.number = number
        self.isDisturbed = self.isAborted = False
        hosts = scenario.hosts
        self.users = [User(scenario, self, host, end) for end, host in enumerate(hosts)]
        self.users[0].other, self.users[1].other = reversed(self.users)
        self.sockets: tuple[MemorySocket, ...] = connectedSockets(
            scenario.world, Random(number), hosts[0], hosts[1], 40_000 + number, 50e-6
        )
        for socket, user in zip(self.sockets, self.users, strict=True):
            factory = MessageFactory([user].pop)
            opening = PeerOpening(user.host, user.host.device, factory, user.number == 0)
            opening.answer.addErrback(user.refused)
            MemoryTCP(socket, opening.lifeline).begin()

    @property
    def isMade(self) -> bool:
        return all(user.transport is not None or user.lost is not None for user in self.users)

    @property
    def isOver(self) -> bool:
        """Whether both ends were reported."""
        return all(user.lost is not None for user in self.users)

    @property
    def isSettled(self) -> bool:
        """Whether all results of calls are known, except those that wait for messages."""
        if self.isDisturbed:
            return self.isOver
        return all(
            user.producer is None and all(act in _RECEIVES for act in user.pending.values())
            for user in self.users
        )


class UserScenario(ProgramScenario):
    """
    A simulation of two hosts with one or more connections, according to its plan.

    @ivar messages: all messages of all programs.
    @ivar early: calls that are made when their ends are connected; C{acts}: the other calls and events.
    """

    def __init__(self, plan: UsersPlan) -> None:
        super().__init__(plan.seed)
        self.plan = plan
        self.messages: list[Sending] = []
        first = plan.acts[: plan.early]
        self.early = [act for act in first if act.act not in EVENTS]
        self.acts = [act for act in first if act.act in EVENTS] + [*plan.acts[plan.early :]]
        if self.early:
            self.world.network.faults = plan.faults
        self.hosts = [self._host(address) for address in ("10.0.1.1", "10.0.1.2")]
        self.connections = [Connection(self, number) for number in range(plan.connections)]

    def _host(self, address: str) -> Host:
        host = Host(self.world, address, lambda: self.world.network.device(address, mtu=self.plan.mtu))
        host.openDevice()
        return host

    def playAll(self) -> None:
        self.until(
            lambda: all(each.isMade for each in self.connections), lambda: "connections are not established"
        )
        for key, module in moduleModule._modules.items():
            if key[0] in self.hosts:
                module.core._budget.most = self.plan.budget
        self.world.network.faults = self.plan.faults
        for act in self.acts:
            self.world.clock.callLater(act.at, self._begin, act)
        self.run(max((act.at for act in self.acts), default=0.0) + 1e-6)
        self.run(LONGEST_TROUBLE)
        self.world.network.faults = Faults()
        self.isFinishing = True
        for user in self._users():
            if user.transport is not None:
                user.host.callLater(0, user.finish)
        self.until(lambda: all(each.isSettled for each in self.connections), lambda: "calls have no result")
        self.run(2.0)
        for connection in self.connections:
            if not connection.isDisturbed:
                self._checkQuiet(connection)
                self._end(connection)
        self.until(lambda: all(each.isOver for each in self.connections), lambda: "connections do not end")
        self.run(0.01)
        for connection in self.connections:
            self._judge(connection)
        self._checkNothingLeft()
        self.counts.update(Counter(f"messages {each.outcome}" for each in self.messages))

    def _users(self) -> Iterator[User]:
        for connection in self.connections:
            yield from connection.users

    def _begin(self, plan: ActPlan) -> None:
        """Begin a call or an event."""
        connection = self.connections[plan.connection]
        host, network, later = self.hosts[plan.end], self.world.network, self.world.clock.callLater
        seconds = min(abs(plan.seconds), LONGEST_TROUBLE)
        if plan.act is Act.CLOCK:
            host.setClock(plan.seconds)
        elif plan.act is Act.SLEEP:
            host.sleep()
            later(seconds, host.wake)
        elif plan.act is Act.PARTITION:
            network.partition(*(each.address for each in self.hosts))
            later(seconds, network.heal)
        elif plan.act is Act.CUT:
            connection.isDisturbed = connection.isAborted = True
            connection.sockets[0].wire.cut()
        else:
            user = connection.users[plan.end]
            host.callLater(0, self.make, user, plan)

    def make(self, user: User, plan: ActPlan) -> None:
        """Make a call of a program that is connected."""
        try:
            if user.transport is not None:
                user.act(plan)
        except Exception:
            self.broken(Failure())

    def _end(self, connection: Connection) -> None:
        """Close a connection that works."""
        connection.isDisturbed = True
        for user in connection.users:
            if self.plan.ending in (user.number, 2):
                user.host.callLater(0, user.transport.loseConnection)
        self.until(lambda: connection.isOver, lambda: "a connection does not close")
        for user in connection.users:
            assert user.lost is not None
            check(user.lost.check(ConnectionDone) is not None, f"{user!r} ends by {user.lost.value!r}")

    # Checks

    def _checkQuiet(self, connection: Connection) -> None:
        """Check that nothing is queued or counted in a connection on which everything has arrived."""
        for user in connection.users:
            transport, remote = user.transport, user.other.transport
            for name, value in _leftOf(transport):
                check(not value, f"{user!r} has {value} as {name}")
            for tag, window in transport._outbox._windows.items():
                arrived = remote._inbox._tags.get(tag)
                flow = remote._flow if arrived is None else arrived.flow
                sent, counted = window.flow, (flow.received, flow.handled)
                check(counted == (sent.sent, sent.sent), f"{counted} of {sent.sent} bytes of tag {tag:#x}")
                check(sent.acknowledged == flow.reported, f"a report of tag {tag:#x} is missing")

    def _judge(self, connection: Connection) -> None:
        """Check the results of a connection that has ended."""
        for user in connection.users:
            check(user.producer is None, f"{user!r} has a producer")
            check(not user.pending, f"{user!r} waits for results of {list(user.pending.values())}")
            check(not any(map(any, user.unused)), f"{user!r} has bytes in a buffer that was not used")
        isClean = all(user.lost and user.lost.check(ConnectionDone) for user in connection.users)
        isLossy = self.plan.faults != Faults() or self.world.network.dropped > 0
        for message in self.messages:
            if message.sender.connection is not connection or message.outcome != "done":
                continue
            receiver = message.sender.other
            mayDrop = connection.isAborted or not isClean or message.tag in receiver.dropping
            mayDrop = mayDrop or (receiver.hasClosed and (isLossy or message.tag is None))
            check(message.deliveries == 1 or mayDrop, f"{message!r} was not delivered")

    def _checkNothingLeft(self) -> None:
        """Check that modules, queue pairs, sockets, readers and delayed calls are released."""
        for host in self.hosts:
            check(not any(key[0] is host for key in moduleModule._modules), f"{host!r} has a module")
            checkReleased(host)

    def release(self) -> None:
        for key, module in list(moduleModule._modules.items()):
            if key[0] in self.hosts:
                module._isClosed = True
                module._closing.close()
        super().release()


def _leftOf(transport: BTLMessageTransport) -> Iterator[tuple[str, object]]:
    """Return names and values of what must be empty when everything has arrived."""
    peer, caller, answerer, memory = (
        transport._peer,
        transport._caller,
        transport._answerer,
        transport._memory,
    )
    yield "waiting bytes", transport._waitingBytes()
    yield "queued messages", not transport._outbox.isEmpty()
    yield "messages in flight", peer.sent.outstanding
    yield "messages that wait for earlier ones", peer.order.waiting
    yield "incomplete messages", len(peer.assembly)
    yield "bytes that were not received", transport._inbox._bytes
    yield "messages without a tag", transport._undelivered
    yield "waits for the queue", transport._ready
    for requests in (caller, memory._reads):
        yield "requests", requests._sent or requests._outcomes or requests._queued or requests._sentBytes
    yield "answers", answerer._lengths or answerer._running or answerer._waiting
    yield "bytes of answers", answerer._bytes or answerer._answerBytes
    yield "reads of the peer", memory._answering
    yield "regions", len(memory._regions) - 1


@contextmanager
def _limited(plan: UsersPlan) -> Iterator[None]:
    """Make limits small, and random numbers and busy-polling deterministic."""
    random = Random(f"chance {plan.seed}")
    values = (
        *((module, "randbits", random.getrandbits) for module in (moduleModule, lifelineModule)),
        (probesModule, "token_bytes", random.randbytes),
        (moduleModule, "COMMAND_DEPTHS", (64, 256)),
        (moduleModule, "DATA_DEPTHS", (64, 256)),
        (flowModule, "WINDOW", plan.window),
        (transportModule, "FULL", plan.full),
        (requestsModule, "MOST_CALLS", plan.requests),
        (requestsModule, "MOST_CALL_BYTES", 50_000),
        (requestsModule, "REPORTED", 2000),
        (memoryModule, "MOST_GETS", plan.requests),
    )
    with ExitStack() as patches:
        for where, name, value in values:
            patches.enter_context(mock.patch.object(where, name, value))
        patches.enter_context(ticking())
        yield


def playUsers(plan: UsersPlan) -> Outcome:
    """
    Run the simulation of a plan.

    @raise Violation: a promise was violated.
    """
    with _limited(plan):
        return UserScenario(plan).play()
