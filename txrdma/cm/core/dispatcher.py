"""
The dispatcher of one end port: finds the connection of each message, and answers messages without a
connection.

Follows InfiniBand Architecture vol. 1, 12.9.8 (comm ids, stale connections) and 12.9.9 (timewait).

Theory of operation. Messages after the first carry the communication ID that this end has chosen; it is
random, and the peer's ID must match, too. A REQ is known by the peer's GUID and comm id (a duplicate), or by
its GUID and queue pair: then the peer has forgotten that connection, which ends as stale, and so does the new
attempt. Otherwise it belongs to a crossing attempt of this end, or to a listener. So every message of a peer
is answered, or counted as late; it changes no connection but the one that it matches.

After each input, L{Dispatcher.collect} collects events and messages of that connection, updates its deadline
in one timer wheel for all, and forgets it when it is free. While a connection has an alternate path, its
messages are sent again by both paths in turn: if the primary one is cut, the peer still gets a DREQ. What
peers can fill is bounded: a listener drops REQs beyond its backlog, which peers retransmit, and only
L{MOST_SIDR_REQUESTS} answers to SIDR_REQs are stored. A host can use only its share of both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, ExitStack
from typing import Final, Union

from txrdma.cm.core.alternate import acceptAnyPath, PathCheck
from txrdma.cm.core.connection import ConnectionCore
from txrdma.cm.core.events import ConnectionAbandoned, Event, PathMigrated
from txrdma.cm.core.exchange import LOW_BITS, RetryPolicy
from txrdma.cm.core.sidr import Resolution
from txrdma.cm.layouts.messages import (
    APR,
    APStatus,
    DREP,
    DREQ,
    LAP,
    MessageKind,
    MRA,
    REJ,
    RejectReason,
    REP,
    REQ,
    RTU,
    SIDRREP,
    SIDRREQ,
    SIDRStatus,
)
from txrdma.cm.layouts.paths import pathOf
from txrdma.cm.layouts.rejectinfo import informationFor, ROOM
from txrdma.error import InvalidRequest, ResourceExhausted
from txrdma.iba.path import GMP_QKEY, IBPath
from txrdma.iba.types import GUID, QPN
from txrdma.kit.deadlines import Slot, TimerWheel
from txrdma.kit.shares import Shares
from txrdma.kit.values import frozen, replace
from txrdma.kit.wire import Layout

BACKLOG: Final = 2048
"""Default maximum of requested and not yet established connections of a listener."""

CLASS_VERSION: Final = 2
"""The class version of all messages."""

SLOT_SECONDS: Final = 0.01
"""The precision of timeouts, in seconds."""

MOST_SIDR_REQUESTS: Final = 2048
"""
Maximum number of stored answers to SIDR_REQs. The oldest one (of the same host, if that has its share) is
replaced by a new request's, unless its service has not answered yet: then the new request gets no answer.
"""

_AGAIN: Final = RetryPolicy(18, 18, 2)
"""The time in which a SIDR_REQ may be retransmitted."""

_TRIES: Final = 64

_UNANSWERED: Final = ("REQ_SENT", "MRA_REQ_RCVD")
"""The states in which the REQ of a peer may cross that of this end."""


class Listener:
    """
    A listener for the REQs, or the SIDR_REQs, of a service id.

    @ivar backlog: limit of C{waiting}. REQs beyond it are dropped; peers retransmit them.
    @ivar pattern: bytes that the private data of a REQ must have at C{offset}.
    @ivar isForSIDR: it takes SIDR_REQs only, and REQs are rejected.
    @ivar waiting: local communication IDs of requested connections that are not established yet, by host.
    """

    __slots__ = (
        "backlog",
        "checkPath",
        "isForSIDR",
        "mayReload",
        "offset",
        "pattern",
        "serviceID",
        "waiting",
    )

    def __init__(
        self,
        serviceID: int,
        backlog: int = BACKLOG,
        offset: int = 0,
        pattern: bytes = b"",
        mayReload: bool = False,
        checkPath: PathCheck = acceptAnyPath,
        isForSIDR: bool = False,
    ) -> None:
        """@param mayReload: passed on to L{txrdma.cm.core.alternate.Alternate}, as C{checkPath}."""
        self.serviceID = serviceID
        self.backlog, self.offset, self.pattern = backlog, offset, pattern
        self.mayReload, self.checkPath, self.isForSIDR = mayReload, checkPath, isForSIDR
        self.waiting = Shares[int]()

    def matches(self, privateData: bytes) -> bool:
        """Whether private data match the pattern."""
        return privateData.startswith(self.pattern, self.offset)


@frozen
class PendingSend:
    """A message to send, and its path."""

    message: Layout
    transactionID: int
    path: IBPath


class Managed:
    """
    A connection or a resolution, and its manager's data.

    @ivar core: the connection, or the resolution.
    @ivar path: path of messages to the peer.
    @ivar listener: the listener that received it; None at the requesting end.
    @ivar sender: the host that has sent the request to this end, for limits; None at the requesting end.
    @ivar usesAlternate: messages use the alternate path while there is one: the peer's last message used it,
        or the primary path was tried before.
    """

    __slots__ = ("core", "deadline", "key", "listener", "names", "path", "sender", "slot", "usesAlternate")

    def __init__(
        self,
        key: int,
        core: Union[ConnectionCore, Resolution],
        path: IBPath,
        listener: Listener | None = None,
        sender: Hashable = None,
    ) -> None:
        self.key, self.core, self.path, self.listener, self.sender = key, core, path, listener, sender
        self.deadline: float | None = None
        self.usesAlternate = False
        self.slot: Slot[Managed] = {}
        self.names: list[tuple[dict[tuple[object, int], Managed], tuple[object, int]]] = []

    @property
    def alternate(self) -> IBPath | None:
        """The alternate path of messages to the peer, if both ends have agreed on one."""
        path = self.core.alternatePath
        return None if path is None else _toGSI(pathOf(path))

    def receivedOn(self, path: IBPath) -> None:
        """Note the path of a message of the peer: it works, so the answer uses it, too."""
        other = self.alternate
        self.usesAlternate = other is not None and (other.dgid, other.dlid) == (path.sgid, path.slid)

    def pathOfMessage(self, isAgain: bool) -> IBPath:
        """The path of the next message. Retransmissions alternate between both paths: one may be cut."""
        other = self.alternate
        if other is None:
            return self.path
        if isAgain:
            self.usesAlternate = not self.usesAlternate
        return other if self.usesAlternate else self.path

    @property
    def connection(self) -> ConnectionCore:
        """The core, which is a connection."""
        assert isinstance(self.core, ConnectionCore)
        return self.core

    @property
    def resolution(self) -> Resolution:
        """The core, which is a resolution."""
        assert isinstance(self.core, Resolution)
        return self.core


class Dispatcher:
    """
    The connections, listeners and resolutions of one end port.

    After a request to a connection or a resolution its owner calls L{collect}.

    @ivar guid: the CA GUID of this end, in its REQs and REPs. Each process needs its own: by GUID and queue
        pair peers find connections that this end has forgotten.
    @ivar counters: messages by direction and kind: C{"sent REQ"}, C{"retried REQ"} (which are sent, too),
        C{"received REQ"}, C{"duplicate REQ"} (late ones, too), C{"stray REP"} (of no connection).
    """

    def __init__(
        self,
        guid: GUID,
        random: Callable[[], int],
        idPrefix: int | None = None,
        senderOf: Callable[[IBPath], Hashable] = lambda path: path.sgid or path.slid,
    ) -> None:
        """
        @param random: returns unpredictable numbers of 32 bits.
        @param idPrefix: upper 8 bits of all communication IDs and request IDs, by which messages find this
            manager among others of the same address; None for any.
        @param senderOf: returns the identity of the sender of a request that was received on a path.
        """
        self._idPrefix, self._senderOf = idPrefix, senderOf
        self.guid = guid
        self.counters: Counter[str] = Counter()
        self._random = random
        self._connections: dict[int, Managed] = {}
        self._byPeer: dict[tuple[object, int], Managed] = {}
        self._byQP: dict[tuple[object, int], Managed] = {}
        self._peerToPeer: dict[Managed, None] = {}  # attempts without an answer, oldest first
        self._resolutions: dict[int, Managed] = {}
        self._sidrRequests: dict[tuple[object, int], Managed] = {}
        self._sidrShares = Shares[tuple[object, int]]()
        self._listeners: dict[int, list[Listener]] = {}
        self._wheel: TimerWheel[Managed] = TimerWheel(SLOT_SECONDS)
        self._packets: list[PendingSend] = []
        self._events: list[tuple[Managed, Event]] = []
        self._freed: list[Managed] = []

    def __len__(self) -> int:
        """Connections, including those in time-wait."""
        return len(self._connections)

    @property
    def states(self) -> Counter[str]:
        return Counter(managed.connection.state for managed in self._connections.values())

    @property
    def listeners(self) -> int:
        """The number of listeners, those for SIDR_REQs included."""
        return sum(map(len, self._listeners.values()))

    # Requests of programs

    def listen(self, listener: Listener) -> None:
        """
        Accept REQs, or SIDR_REQs, for a service.

        @raise InvalidRequest: another listener accepts the same requests.
        """
        others = self._listeners.setdefault(listener.serviceID, [])
        for other in others:
            if (other.offset, other.pattern) == (listener.offset, listener.pattern):
                reason = f"this program listens for service {listener.serviceID:#x} already"
                raise InvalidRequest(f"{reason}; stop that listener, or choose another service or port")
        others.append(listener)
        others.sort(key=lambda each: -len(each.pattern))  # the most special one first

    def unlisten(self, listener: Listener) -> None:
        """Accept no more requests for a listener; its connections stay. Idempotent."""
        others = self._listeners.get(listener.serviceID, [])
        if listener in others:
            others.remove(listener)
        if not others:
            self._listeners.pop(listener.serviceID, None)

    def connect(
        self,
        request: REQ,
        path: IBPath,
        now: float,
        isPeerToPeer: bool = False,
        mayReload: bool = False,
        checkPath: PathCheck = acceptAnyPath,
    ) -> Managed:
        """
        Send a REQ; communication ID and CA GUID are filled in.

        @param path: path of messages to the peer.
        @param mayReload: see L{txrdma.cm.core.alternate.Alternate}, as C{checkPath}.
        @raise ResourceExhausted: no communication ID is free.
        """
        number = self._freeNumber(self._connections)
        firstTransaction = self._random() & LOW_BITS
        connection = ConnectionCore(
            number, self.guid, firstTransaction, mayReload=mayReload, checkPath=checkPath
        )
        managed = self._connections[number] = Managed(number, connection, _toGSI(path))
        made = request.replace(localCommID=number, localCAGUID=self.guid)
        if isPeerToPeer:
            self._peerToPeer[managed] = None
        with self._abandoning(managed):
            connection.opening.connect(made, firstTransaction, now, isPeerToPeer)
            self.collect(managed, now)
        return managed

    def resolve(self, request: SIDRREQ, path: IBPath, retryPolicy: RetryPolicy, now: float) -> Managed:
        """
        Send a SIDR_REQ; its request id is filled in.

        @raise ResourceExhausted: no request id is free.
        """
        number = self._freeNumber(self._resolutions)
        managed = self._resolutions[number] = Managed(number, Resolution(retryPolicy), _toGSI(path))
        with self._abandoning(managed):
            managed.resolution.ask(request.replace(requestID=number), self._random() & LOW_BITS, now)
            self.collect(managed, now)
        return managed

    def answer(self, managed: Managed, response: SIDRREP, now: float) -> None:
        """Answer a SIDR_REQ."""
        with self._abandoning(managed):
            managed.resolution.answer(response, now)
            self.collect(managed, now)

    def cancel(self, managed: Managed, now: float) -> None:
        """Wait no longer for the answer to a SIDR_REQ."""
        with self._abandoning(managed):
            managed.resolution.cancel(now)
            self.collect(managed, now)

    def perform(self, managed: Managed, request: Callable[[float], object], now: float) -> bool:
        """
        Make a request to a connection.

        @return: False if the connection has ended.
        @raise InvalidRequest: the request is not possible. A connection whose state has changed before an
            exception is abandoned.
        """
        if self._connections.get(managed.key) is not managed:
            return False
        state = managed.connection.state
        try:
            request(now)
        except BaseException:
            if managed.connection.state != state:
                self._abandon(managed)
            raise
        with self._abandoning(managed):
            self.collect(managed, now)
        return True

    def collect(self, managed: Managed, now: float) -> None:
        """Collect messages, events and deadlines of a connection or a resolution after a request."""
        core = managed.core
        if isinstance(core, ConnectionCore):
            core.afterRequest(now)
            if managed.listener is not None and core.closing is not None:  # it is established, or has failed
                managed.listener.waiting.remove(managed.sender, managed.key)
            if self._peerToPeer and managed in self._peerToPeer and core.state not in _UNANSWERED:
                del self._peerToPeer[managed]
        for event in core.events():
            if isinstance(event, PathMigrated):
                managed.path = _toGSI(pathOf(event.path))
            self._events.append((managed, event))
        for each in core.outgoing():
            path = managed.pathOfMessage(each.isAgain)
            self._send(each.message, each.transactionID, path, each.isAgain)
        if core.isFree:
            self._forget(managed)
        else:
            self._schedule(managed)

    # The five verbs

    def deadline(self) -> float | None:
        return self._wheel.deadline()

    def outgoing(self) -> list[PendingSend]:
        """Take the messages to send; handle the events first."""
        taken, self._packets = self._packets, []
        return taken

    def events(self) -> list[tuple[Managed, Event]]:
        taken, self._events = self._events, []
        return taken

    def freed(self) -> list[Managed]:
        """Return the connections and resolutions that ended since the last call; handle the events first."""
        taken, self._freed = self._freed, []
        return taken

    def expired(self, now: float) -> None:
        """Process all deadlines until now, whichever of them raises an exception."""
        with ExitStack() as steps:
            for managed in reversed(self._wheel.expired(now)):
                steps.callback(self._expire, managed, now)

    def _expire(self, managed: Managed, now: float) -> None:
        managed.deadline = None
        with self._abandoning(managed):
            managed.core.expired(now)
            self.collect(managed, now)

    def received(self, message: Layout, transactionID: int, path: IBPath, now: float) -> None:
        """Process a message of a peer. C{path}: path that the message took."""
        kind = type(message).__name__
        self.counters[f"received {kind}"] += 1
        if isinstance(message, REQ):
            managed = self._ofREQ(message, transactionID, path, now)
        elif isinstance(message, SIDRREQ):
            managed = self._ofSIDRREQ(message, transactionID, path)
        elif isinstance(message, SIDRREP):
            managed = self._resolutions.get(message.requestID)
        else:
            managed = self.matching(message)
            if managed is None:
                self._answerUnknown(message, transactionID, path)
                self.counters[f"stray {kind}"] += 1
            elif isinstance(message, REP) and self._endStale(managed, message, transactionID, now):
                self._refuse(message, RejectReason.STALE_CONNECTION, transactionID, path)
                managed = None
        if managed is None:
            return
        with self._abandoning(managed):
            managed.receivedOn(path)  # before the core, whose answer takes the path of the message
            if not managed.core.received(message, transactionID, now):
                self.counters[f"duplicate {kind}"] += 1
            self.collect(managed, now)
        if isinstance(message, (REQ, REP)) and managed.key in self._connections:
            self._indexByPeer(managed)

    def refuseVersion(self, message: Layout, transactionID: int, path: IBPath) -> None:
        """Reject a request of another class version (IBA 12.6.7.2); other messages are dropped."""
        self.counters[f"unsupported {type(message).__name__}"] += 1
        if isinstance(message, REQ):
            reason = RejectReason.UNSUPPORTED_CLASS_VERSION
            self._refuse(message, reason, transactionID, path, informationFor(reason, CLASS_VERSION))
        elif isinstance(message, SIDRREQ):
            status = SIDRStatus.VERSION_NOT_SUPPORTED
            information = informationFor(status, CLASS_VERSION)
            self._refuseSIDRREQ(message, status, transactionID, path, information)

    # Messages without a connection, and their answers

    def _ofREQ(self, request: REQ, transactionID: int, path: IBPath, now: float) -> Managed | None:
        # The GUID and the comm ID identify the peer's attempt, whichever path its REQ has taken.
        known = self._byPeer.get((request.localCAGUID, request.localCommID))
        if known is not None:
            if known.connection.state != "TIMEWAIT":
                return known
            self._refuse(request, RejectReason.STALE_CONNECTION, transactionID, path)
            return None
        old = self._byQP.get((request.localCAGUID, request.localQPN))
        if old is not None:  # the peer has forgotten it
            self._refuse(request, RejectReason.STALE_CONNECTION, transactionID, path)
            self._fail(old, now)
            return None
        crossing = self._crossing(request, path)
        return crossing or self._ofListener(request, transactionID, path)

    def _crossing(self, request: REQ, path: IBPath) -> Managed | None:
        """A peer-to-peer connection attempt of this end that this REQ may match."""
        for managed in self._peerToPeer:
            if request.localCAGUID == self.guid and request.localCommID == managed.key:
                continue  # its own REQ: the peer is another attempt of this manager
            isService = request.serviceID == managed.connection.opening.request.serviceID
            if isService and (managed.path.dgid, managed.path.dlid) == (path.sgid, path.slid):
                return managed
        return None

    def _ofListener(self, request: REQ, transactionID: int, path: IBPath) -> Managed | None:
        candidates = self._listeners.get(request.serviceID, ())
        listener = next((each for each in candidates if each.matches(request.privateData)), None)
        if listener is None or listener.isForSIDR:
            self._refuse(request, RejectReason.INVALID_SERVICE_ID, transactionID, path)
            return None
        sender = self._senderOf(path)
        if not listener.waiting.hasRoom(sender, listener.backlog):
            self.counters["dropped REQ"] += 1
            return None
        number = self._freeNumber(self._connections)
        firstTransaction = self._random() & LOW_BITS
        connection = ConnectionCore(
            number, self.guid, firstTransaction, mayReload=listener.mayReload, checkPath=listener.checkPath
        )
        managed = Managed(number, connection, _toGSI(path.reverse()), listener, sender)
        self._connections[number] = managed
        listener.waiting.add(sender, number)
        return managed

    def _ofSIDRREQ(self, request: SIDRREQ, transactionID: int, path: IBPath) -> Managed | None:
        key = (path.sgid or path.slid, request.requestID)
        known = self._sidrRequests.get(key)
        if known is not None:
            return known
        listener = next(iter(self._listeners.get(request.serviceID, ())), None)
        if listener is None:
            self._refuseSIDRREQ(request, SIDRStatus.SERVICE_ID_NOT_SUPPORTED, transactionID, path)
            return None
        sender, shares = self._senderOf(path), self._sidrShares
        if not shares.hasRoom(sender, MOST_SIDR_REQUESTS):
            isUsed = shares.isUsed(sender, MOST_SIDR_REQUESTS)
            oldest = self._sidrRequests[shares.oldest(sender) if isUsed else next(iter(self._sidrRequests))]
            if not oldest.resolution.isAnswered:
                return None
            self._forget(oldest)  # a retransmission of its request is answered by the service again
        managed = Managed(request.requestID, Resolution(_AGAIN), _toGSI(path.reverse()), listener, sender)
        self._sidrRequests[key] = managed
        shares.add(sender, key)
        managed.names.append((self._sidrRequests, key))
        return managed

    def matching(self, message: Layout) -> Managed | None:
        """Return the connection of a message, by its communication IDs."""
        if not isinstance(message, (REP, REJ, MRA, RTU, DREQ, DREP, LAP, APR)):
            return None
        managed = self._connections.get(message.remoteCommID)
        if managed is None and isinstance(message, REJ) and message.reason == RejectReason.TIMEOUT:
            peer = GUID(bytes(message.additionalInfo[:8]))
            return self._byPeer.get((peer, message.localCommID))
        if managed is None:
            return None
        known = managed.connection.remoteCommID
        isFirst = known == 0 and isinstance(message, (REP, REJ, MRA))  # the peer's id may be new, or none yet
        return managed if isFirst or known == message.localCommID else None

    def _endStale(self, managed: Managed, reply: REP, transactionID: int, now: float) -> bool:
        """
        End a connection whose peer's queue pair the REP of another one names, and that other one, too.
        @return: whether there was such a connection.
        """
        old = self._byQP.get((reply.localCAGUID, reply.localQPN))
        if old is None or old is managed:
            return False
        with self._abandoning(managed):
            self._fail(old, now)
            rejection = REJ(messageRejected=MessageKind.REQ, reason=RejectReason.STALE_CONNECTION)
            managed.connection.received(rejection, transactionID, now)
            self.collect(managed, now)
        return True

    def _fail(self, managed: Managed, now: float) -> None:
        """End a connection that its peer has forgotten."""
        with self._abandoning(managed):
            managed.connection.fail(now)
            self.collect(managed, now)

    def _answerUnknown(self, message: Layout, transactionID: int, path: IBPath) -> None:
        """Answer a message of an unknown connection, if its sender waits for an answer."""
        if isinstance(message, REP):
            self._refuse(message, RejectReason.INVALID_COMM_ID, transactionID, path)
        elif isinstance(message, (DREQ, LAP)):
            local, remote = message.remoteCommID, message.localCommID
            answer: Layout = DREP(localCommID=local, remoteCommID=remote)
            if isinstance(message, LAP):
                answer = APR(localCommID=local, remoteCommID=remote, apStatus=APStatus.INVALID_COMM_ID)
            self._send(answer, transactionID, _toGSI(path.reverse()))

    def _refuseSIDRREQ(
        self,
        request: SIDRREQ,
        status: SIDRStatus,
        transactionID: int,
        path: IBPath,
        information: bytes = b"",
    ) -> None:
        refusal = SIDRREP(
            requestID=request.requestID,
            serviceID=request.serviceID,
            status=status,
            additionalInfoLength=len(information),
            additionalInfo=information.ljust(ROOM, b"\0"),
        )
        self._send(refusal, transactionID, _toGSI(path.reverse()))

    def _refuse(
        self,
        message: REQ | REP,
        reason: RejectReason,
        transactionID: int,
        path: IBPath,
        information: bytes = b"",
    ) -> None:
        isREQ = isinstance(message, REQ)
        rejection = REJ(
            localCommID=0 if isinstance(message, REQ) else message.remoteCommID,
            remoteCommID=message.localCommID,
            messageRejected=MessageKind.REQ if isREQ else MessageKind.REP,
            reason=reason,
            rejectInfoLength=len(information),
            additionalInfo=information.ljust(ROOM, b"\0"),
        )
        self._send(rejection, transactionID, _toGSI(path.reverse()))

    # Tables

    def _freeNumber(self, taken: dict[int, Managed]) -> int:
        """Return an unpredictable number that is not in use, and was not recently."""
        for _ in range(_TRIES):
            number = self._random() & LOW_BITS
            if self._idPrefix is not None:
                number = self._idPrefix << 24 | number & 0xFFFFFF
            if number and number not in taken:
                return number
        raise ResourceExhausted("no id is free")

    def _indexByPeer(self, managed: Managed) -> None:
        """Index a connection by the IDs of its peer."""
        connection = managed.connection
        guid = connection.remoteGUID
        if guid is None:
            return
        names = [(self._byPeer, connection.remoteCommID)]
        if connection.remoteQPN:
            names.append((self._byQP, connection.remoteQPN))
        for table, number in names:
            key = (guid, number)
            if number and key not in table:  # a peer cannot take the name of another connection
                table[key] = managed
                managed.names.append((table, key))

    def _forget(self, managed: Managed) -> None:
        managed.slot.pop(id(managed), None)
        table = self._connections if isinstance(managed.core, ConnectionCore) else self._resolutions
        if table.get(managed.key) is managed:
            del table[managed.key]
        for names, key in managed.names:
            names.pop(key, None)
            if names is self._sidrRequests:
                self._sidrShares.remove(managed.sender, key)
        managed.names.clear()
        managed.core.free()
        self._freed.append(managed)
        self._peerToPeer.pop(managed, None)
        if managed.listener is not None:
            managed.listener.waiting.remove(managed.sender, managed.key)

    @contextmanager
    def _abandoning(self, managed: Managed) -> Iterator[None]:
        """Abandon a connection or a resolution if an exception is raised."""
        try:
            yield
        except BaseException:
            self._abandon(managed)
            raise

    def _abandon(self, managed: Managed) -> None:
        """Forget a connection or a resolution whose state is unknown after an exception."""
        self._events = [each for each in self._events if each[0] is not managed]
        self._events.append((managed, ConnectionAbandoned()))
        self._forget(managed)

    def _schedule(self, managed: Managed) -> None:
        deadline = managed.core.deadline()
        if deadline != managed.deadline:
            managed.slot.pop(id(managed), None)
            managed.deadline = deadline
            if deadline is not None:
                managed.slot = self._wheel.add(id(managed), managed, deadline)

    def _send(self, message: Layout, transactionID: int, path: IBPath, isAgain: bool = False) -> None:
        kind = type(message).__name__
        self.counters[f"sent {kind}"] += 1
        if isAgain:
            self.counters[f"retried {kind}"] += 1
        self._packets.append(PendingSend(message, transactionID, path))


def _toGSI(path: IBPath) -> IBPath:
    """Return the same path, from queue pair 1 to queue pair 1."""
    if path.dqpn == 1 and path.sqpn == 1 and path.qkey == GMP_QKEY:
        return path
    return replace(path, dqpn=QPN(1), sqpn=QPN(1), qkey=GMP_QKEY)
