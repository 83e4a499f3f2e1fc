"""
Calls of one port: sent, repeated, answered, redirected and given up.

Follows InfiniBand Architecture vol. 1, 13.4.6 (transactions), 13.4.8.1 (redirection), 13.5.4 (BUSY) and 13.6
(RMPP). Nothing here reads a clock or a socket; see L{txrdma.mad.agent} for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol, Union

from txrdma.error import InvalidRequest, RDMAError, WireError
from txrdma.iba.path import IBPath, MADEndPort
from txrdma.mad.core.answers import answerOf, check, HEADER, OFFSETS, Records, redirected, TABLES, whole
from txrdma.mad.core.datagrams import datagramOf
from txrdma.mad.core.timeouts import Timeouts
from txrdma.mad.core.transactions import Call, Due, Transactions
from txrdma.mad.core.transfers import Failed, isRMPP, Received, RMPP_CLASSES, RMPPTransfers
from txrdma.mad.errors import MADClassError, MADError, MADTimeoutError, MADTransferError, silence
from txrdma.mad.layouts.attributes import ManagementClass, Method, RPCS
from txrdma.mad.layouts.messages import ClassPortInfo, MAD_LENGTH, MADStatus
from txrdma.mad.layouts.sa import PathRecord
from txrdma.mad.paths import pathOf, toSA

MOST_REDIRECTIONS: Final = 4

LONG_PATIENCE_SECONDS: Final = 10.0
"""Shortest time to wait for the next segment of an answer: Linux sends one again after 2 seconds."""

SLICE: Final = 4096
"""Records of a table that are decoded at once, in some milliseconds: between slices others have a turn."""

_unpack: Final = HEADER.unpack_from
_words: Final = Struct(">IH2xQH2xI").unpack_from
_PLAIN: Final = {0x01810181: 0x8000, 0x01010181: 0, 0x01040181: 0}
"""
Heads and status of good answers to Get and Set, by directed routes, by LID, and of performance management:
nearly all that come. Such a datagram is compared with its call at once, which saves a tenth of a call's time.
"""

_PLAIN_OFFSET: Final = OFFSETS[ManagementClass.PERFORMANCE]
_IDENTIFIER: Final = Struct(">8xQ")
_RESPONSE: Final = 0x80
_TRAP_REPRESS: Final = 0x07
_DIRECTED: Final = int(ManagementClass.SUBN_DIRECTED)
_SUBN: Final = ManagementClass.SUBN_LID
_NO_DIRECTION: Final = 0x7FFF
_GET_MULTI: Final = Method.GET_MULTI
_GET_RESP: Final = Method.GET_RESP
_TABLES: Final = frozenset(map(int, TABLES))


class Terms(Protocol):
    """
    Port of the calls, as the core needs it: all of this returns without I/O.

    @ivar transactionIDBits: number of low bits of a transaction ID that return as they were sent.
    @ivar doesRMPP: True if the port itself segments and reassembles RMPP transfers.
    """

    endPort: MADEndPort
    transactionIDBits: int
    doesRMPP: bool

    def pathOf(self, envelope: object) -> IBPath:
        """Path that a datagram took, from its envelope."""

    def isFrom(self, envelope: object, path: IBPath) -> bool:
        """True if a datagram can be an answer from the end of a path."""


class Requested(NamedTuple):
    """
    A request, or another datagram that is no answer, has come.

    @ivar datagram: the datagram, or the first one of an RMPP transfer.
    @ivar message: bytes of the attribute.
    @ivar path: path that the request took.
    """

    datagram: bytes
    message: bytes
    path: IBPath


class Dropped(NamedTuple):
    """
    A datagram that came was dropped.

    @ivar breaksRules: True if its sender does not keep to the specification.
    """

    reason: str
    breaksRules: bool = False


class Stumbled(NamedTuple):
    """An exception in our own code about a datagram; the call concerned has failed with it."""

    error: Exception


Event = Union[Call, Requested, Dropped, Stumbled]
"""A call that has ended, itself, as these are too many for an object each; or one of the other events."""

Packet = tuple[bytes, IBPath, float]
"""A datagram to send, its path, and the seconds in which an answer is awaited; 0 for none."""


class _Waiting(NamedTuple):
    """A call that waits for the SA's path to the GID that it was redirected to."""

    call: Call
    way: IBPath
    status: int
    reply: bytes


class Calls:
    """
    Calls that go out by one port, and the RMPP transfers of both directions.

    @ivar strangers: number of answers that were dropped as they came from another port than the one asked.
    @ivar isServing: True if requests of others are wanted.
    """

    def __init__(self, port: Terms, random: Callable[[int], bytes]) -> None:
        """@param random: returns that many unforeseeable bytes."""
        self.strangers = 0
        self.isServing = False
        self._port = port
        self._transactions: Transactions = Transactions(port.transactionIDBits, random)
        self._open, self._mask = self._transactions.open, self._transactions.mask
        self._timeouts = Timeouts()
        self._long = RMPPTransfers(port.transactionIDBits)
        self._tables: dict[Call, tuple[bytes, Records]] = {}
        self._ways: dict[Call, _Waiting] = {}
        self._packets: list[Packet] = []
        self._events: list[Event] = []

    def __len__(self) -> int:
        return len(self._transactions)

    @property
    def sent(self) -> int:
        """Requests with an answer that were sent so far, as often as they were."""
        return self._transactions.begun + self._transactions.repeated

    @property
    def late(self) -> int:
        """Times that no answer to a request came in time."""
        return self._transactions.late

    def newIdentifier(self) -> int:
        """Draw a transaction ID: see L{Transactions.newIdentifier}."""
        return self._transactions.newIdentifier()

    # Orders.

    def ask(self, call: Call, path: IBPath, now: float, timeoutSeconds: float | None = None) -> bytes | None:
        """
        Begin a call; its end is an event, unless calls of this name have no answer.

        @param timeoutSeconds: time to wait for an answer; by default as long as path and peer take.
        @return: the datagram to send, which takes no turn by L{outgoing} (a twentieth of a call's time); None
            when the request is an RMPP transfer.
        @raise RDMAError: the call cannot be sent, and gets no event.
        @raise WireError: a value of it does not fit.
        """
        rpc = call.rpc
        identifier = call.chosenID
        if not identifier:
            identifier = self._transactions.newIdentifier()
        elif rpc.answer is not None:
            self._transactions.check(identifier)
        call.identifier = identifier
        call.path = path
        datagram = call.datagram = datagramOf(call, path, identifier)
        if timeoutSeconds is None:
            lifetime = self._port.endPort.subnetTimeout
            timeoutSeconds = self._timeouts.seconds(path, rpc.managementClass, lifetime)
        call.timeoutSeconds = timeoutSeconds
        if rpc.answer is None:
            return datagram
        self._transactions.begin(call, now)
        if rpc.method is not _GET_MULTI:
            return datagram
        if self._port.doesRMPP:
            return whole(datagram, call.content)
        self._long.send(datagram, call.content, path, now)
        self._flush()
        return None

    def answer(self, datagram: bytes, path: IBPath, message: bytes | None, now: float) -> None:
        """
        Send the answer to a request.

        @param path: leads to the requester.
        @param message: the whole message, if the answer is an RMPP transfer; C{datagram} is its first frame.
        @raise ResourceExhausted: too many answers are on their way.
        """
        if message is None or self._port.doesRMPP:
            self._packets.append((datagram if message is None else whole(datagram, message), path, 0.0))
        else:
            self._long.send(datagram, message, path, now)
            self._flush()

    def forget(self, call: Call) -> None:
        """Give up a call without any event for it: its Deferred was cancelled."""
        self._transactions.end(call)
        if self._tables:
            self._tables.pop(call, None)
        if self._ways:
            for question in [each for each, waiting in self._ways.items() if waiting.call is call]:
                del self._ways[question]
                self.forget(question)
        if call.rpc.managementClass in RMPP_CLASSES:
            self._long.forget(call.datagram)
            self._flush()

    def clear(self) -> list[Call]:
        """Give up all calls, and return those that are left to be ended."""
        left = [
            *self._transactions.clear(),
            *self._tables,
            *(waiting.call for waiting in self._ways.values()),
        ]
        calls = [call for call in left if call not in self._ways]
        self._tables.clear()
        self._ways.clear()
        self._packets.clear()
        self._long = RMPPTransfers(self._port.transactionIDBits)
        return calls

    # What comes.

    def received(self, datagram: bytes, envelope: object, now: float) -> Call | None:
        """
        Take a datagram that has come. Whatever that is, this comes back, and the call concerned ends.

        @return: the call that has its answer by this one datagram, as nearly all have: it is no event, and
            nothing else has happened (a tenth of a call's time).
        """
        call: Call | None = None
        try:
            if len(datagram) == MAD_LENGTH:
                head, status, identifier, attributeID, modifier = _words(datagram)
                call = self._open.get(identifier & self._mask)
                if (
                    call is not None
                    and status == _PLAIN.get(head)
                    and attributeID == (kind := call.kind).attributeID
                    and modifier == call.modifier
                    and call.rpc.answer is _GET_RESP
                    and call.datagram[1] == datagram[1]
                    and (status or self._port.isFrom(envelope, call.path))
                ):
                    answer: Any = kind.decode(datagram, kind.dataOffset or _PLAIN_OFFSET)
                    self._transactions.end(call)
                    if kind is not ClassPortInfo and not self._ways:
                        call.answer = answer
                        return call
                    self._told(call, answer, now)
                    return None
            elif not (self._port.doesRMPP and isRMPP(datagram)):
                self._misshapen(datagram, envelope)
                return None
            call = None
            _, managementClass, _, method, _, identifier, _, _ = _unpack(datagram)
            if not method & _RESPONSE and method != _TRAP_REPRESS:
                self._requested(datagram, envelope, now)
                return None
            call = self._open.get(identifier & self._mask)
            if call is not None and managementClass != call.datagram[1]:
                call = None  # another's: it only has the same transaction
            if (
                call is not None
                and managementClass != _DIRECTED
                and not self._port.isFrom(envelope, call.path)
            ):
                self._estranged(call)
            elif managementClass in RMPP_CLASSES and isRMPP(datagram) and not self._port.doesRMPP:
                self._longAnswer(call, datagram, envelope, now)
            elif call is not None:  # else it is late, or not ours
                self._answered(call, datagram, now)
        except Exception as error:
            self._stumbled(call, datagram, error)
        return None

    def _answered(self, call: Call, datagram: bytes, now: float) -> None:
        """Take an answer of whatever kind, as a whole or refused; L{received} itself takes most of them."""
        _, managementClass, _, method, status, _, _, _ = _unpack(datagram)
        if managementClass == _DIRECTED:
            status &= _NO_DIRECTION
        if status:
            self._refused(call, status, datagram, now)
            return
        kind = call.kind
        check(call.rpc, kind, call.datagram, datagram)
        offset = kind.dataOffset or OFFSETS[managementClass]
        if method in _TABLES:  # a port that joins RMPP transfers brings them whole
            if not isRMPP(datagram):
                raise WireError(kind.__name__, 24, "the table is no RMPP transfer")
            self._message(call, datagram, answerOf(call.rpc, kind, datagram, datagram[offset:]), now)
            return
        answer = kind.decode(datagram, offset)
        self._transactions.end(call)
        self._told(call, answer, now)

    def _told(self, call: Call, answer: Any, now: float) -> None:
        """End a call that was closed by its answer; remember the time that a peer says it takes to answer."""
        if call.kind is ClassPortInfo:
            self._timeouts.learn(call.path, call.datagram[1], answer.responseTimeValue)
        self._end(call, answer, now)

    def undeliverable(self, datagram: bytes, reason: str, now: float) -> None:
        """Take back a request that could not be delivered, or at least its first 24 bytes."""
        call = self._transactions.find(_IDENTIFIER.unpack_from(datagram)[0]) if len(datagram) >= 16 else None
        if call is not None:
            self._goOn(self._transactions.undeliverable(call, now), reason, now)

    def unsent(self, datagram: bytes, error: Exception) -> None:
        """Take back a request that could not be sent at all: the call ends by the error."""
        call = self._callOf(datagram)
        if call is not None:
            self._fail(call, error)

    # Time.

    def deadline(self) -> float | None:
        """Time at which to call L{expired}; None for never."""
        if self._tables:
            return -inf
        first = self._transactions.deadline()
        long = self._long.deadline()
        return long if first is None else first if long is None else min(first, long)

    def expired(self, now: float) -> None:
        """Go on at the time of L{deadline}: ask again or give up, resend segments, decode more of a table."""
        for call, (first, records) in tuple(self._tables.items()):
            self._read(call, first, records, now)
        self._goOn(self._transactions.expired(now), "no answer", now)
        deadline = self._long.deadline()
        if deadline is not None and deadline <= now:
            self._long.expired(now)
            self._turn(now)

    # What is taken.

    def outgoing(self) -> Iterable[Packet]:
        """Take the packets that are to be sent."""
        packets = self._packets
        if packets:
            self._packets = []
        return packets

    def events(self) -> Iterable[Event]:
        """Take the events since the last time."""
        events = self._events
        if events:
            self._events = []
        return events

    # The end of a call.

    def _end(self, call: Call, answer: object, now: float) -> None:
        if self._ways and (waiting := self._ways.pop(call, None)) is not None:
            self._found(waiting, answer, now)
            return
        call.answer = answer
        self._events.append(call)

    def _fail(self, call: Call, error: Exception) -> None:
        self.forget(call)
        if self._ways and (waiting := self._ways.pop(call, None)) is not None:
            self._lost(waiting, error)
            return
        call.error = error
        self._events.append(call)

    def _stumbled(self, call: Call | None, datagram: bytes, error: Exception) -> None:
        """End a call after an answer without a meaning, or an error of our own in handling it."""
        if not isinstance(error, WireError):
            self._events.append(Stumbled(error))
        if call is not None:
            self._fail(call, MADClassError(str(error), call.rpc, call.path, call.datagram, datagram))

    def _estranged(self, call: Call) -> None:
        """Drop an answer that came from another port than the one that was asked."""
        self.strangers += 1
        self._events.append(Dropped(f"{call.rpc.name} by {call.path} is answered by somebody else"))

    def _misshapen(self, datagram: bytes, envelope: object) -> None:
        """Drop a datagram of a wrong length (IBA 13.4.2); the call that it answers fails."""
        call = self._callOf(datagram) if len(datagram) >= 16 and datagram[3] & _RESPONSE else None
        if call is None:
            self._events.append(Dropped(f"something of {len(datagram)} bytes is no datagram"))
        elif datagram[1] != _DIRECTED and not self._port.isFrom(envelope, call.path):
            self._estranged(call)
        else:
            said = f"{call.rpc.name}: the answer has {len(datagram)} bytes instead of {MAD_LENGTH}"
            self._fail(call, MADClassError(said, call.rpc, call.path, call.datagram, datagram))

    def _callOf(self, datagram: bytes) -> Call | None:
        """Open call of this transaction ID and class; None without one."""
        call = self._transactions.find(_IDENTIFIER.unpack_from(datagram)[0])
        return call if call is not None and call.datagram[1] == datagram[1] else None

    def _goOn(self, due: Due, why: str, now: float) -> None:
        for call in due.again:
            if call.rpc.managementClass in RMPP_CLASSES and self._hasBegun(call):
                self.forget(call)  # it cannot be begun again by the same name
                self._askAgain(call, call.path, now)
            else:
                self._packets.append((call.datagram, call.path, call.timeoutSeconds))
        for call in due.late:
            said = f"{call.rpc.name}: {why}{silence(call.rpc, call.path, call.keys.mkey)}"
            self._fail(call, MADTimeoutError(said, call.rpc, call.path, call.datagram))

    def _hasBegun(self, call: Call) -> bool:
        """True if an RMPP transfer of the request or of the answer is on its way."""
        return call.rpc.method is _GET_MULTI or self._long.isAnswering(call.datagram)

    def _askAgain(self, call: Call, path: IBPath, now: float) -> None:
        """Send the request again with another transaction ID, or to another node."""
        try:
            datagram = self.ask(call, path, now, call.timeoutSeconds)
            if datagram is not None:
                self._packets.append((datagram, path, call.timeoutSeconds))
        except (RDMAError, WireError) as error:
            self._fail(call, error)

    # Answers that are no.

    def _refused(self, call: Call, status: int, datagram: bytes, now: float) -> None:
        """Handle an error status: wait after BUSY, follow REDIRECT, or fail the call."""
        said = MADStatus(status)
        if said.isBusy and self._transactions.busy(call, now):
            return
        why = ""
        if said.isRedirect and call.rpc.managementClass != _SUBN:
            way = redirected(call.path, datagram)
            if way is not None and call.redirections < MOST_REDIRECTIONS:
                self.forget(call)
                call.redirections += 1
                if way.dlid or not self._port.endPort.lid:
                    self._askAgain(call, way, now)
                else:
                    self._askForWay(_Waiting(call, way, status, datagram), now)
                return
            why = " to nobody" if way is None else f" for the {call.redirections + 1}th time"
        self._fail(call, MADError(call.rpc, call.path, status, call.datagram, datagram, why))

    def _askForWay(self, waiting: _Waiting, now: float) -> None:
        """Ask the SA for the path to a GID; its redirections count like those of the call that waits."""
        end, call, dgid = self._port.endPort, waiting.call, waiting.way.dgid
        if not end.gids or dgid is None:  # the way is by a GID: it has no LID
            self._lost(waiting, InvalidRequest("our own port has no GID"))
            return
        query = PathRecord.query(dgid=dgid, sgid=end.gids[0], reversible=True, numbPath=1)
        rpc = RPCS["SubnAdmGet"]
        question = Call(rpc, PathRecord, query.record.encode(), 0, call.keys, query.mask)
        question.redirections = call.redirections
        question.timeoutSeconds = call.timeoutSeconds
        question.retriesLeft = call.retriesLeft
        self._ways[question] = waiting
        self._askAgain(question, toSA(end), now)

    def _found(self, waiting: _Waiting, record: Any, now: float) -> None:
        way = waiting.way
        try:
            there = replace(pathOf(record), pkey=way.pkey, dqpn=way.dqpn, qkey=way.qkey)
        except ValueError as error:
            self._lost(waiting, error)
        else:
            self._askAgain(waiting.call, there, now)

    def _lost(self, waiting: _Waiting, error: Exception) -> None:
        call, way, status, reply = waiting
        why = f" to {way.dgid}, and nobody knows the way: {error}"
        self._fail(call, MADError(call.rpc, call.path, status, call.datagram, reply, why))

    # RMPP transfers.

    def _requested(self, datagram: bytes, envelope: object, now: float) -> None:
        """Take a request, or a packet of an RMPP transfer that another node has begun."""
        if not self.isServing:
            return
        path = self._port.pathOf(envelope)
        if isRMPP(datagram) and not self._port.doesRMPP:
            self._transferred(datagram, path, now)
        else:
            self._events.append(Requested(datagram, datagram[OFFSETS[datagram[1]] :], path))

    def _longAnswer(self, call: Call | None, datagram: bytes, envelope: object, now: float) -> None:
        """A packet of an answer, or about a question."""
        path = self._port.pathOf(envelope)
        if call is not None or self._long.expects(datagram, path):
            self._transferred(datagram, path, now, call)

    def _transferred(self, datagram: bytes, path: IBPath, now: float, call: Call | None = None) -> None:
        try:
            if self._long.received(datagram, path, now) and call is not None:
                patience = max(call.timeoutSeconds, LONG_PATIENCE_SECONDS)
                self._transactions.extend(call, now + patience)
        except WireError as error:
            self._events.append(Dropped(f"{path} sends nonsense: {error}", breaksRules=True))
        self._turn(now, path)

    def _flush(self) -> None:
        self._packets += [(packet.datagram, packet.path, 0.0) for packet in self._long.outgoing()]

    def _turn(self, now: float, path: IBPath | None = None) -> None:
        """Send packets of RMPP transfers, and end calls whose transfers have ended."""
        for event in self._long.events():
            if isinstance(event, Received):
                self._arrived(event, path, now)
            elif isinstance(event, Failed):
                self._notArrived(event)
        self._flush()

    def _arrived(self, event: Received, path: IBPath | None, now: float) -> None:
        first = event.first
        if not first[3] & _RESPONSE:
            if path is not None:
                self._events.append(Requested(first, event.message, path))
            return
        call = self._callOf(first)
        if call is None:
            return
        try:
            status = _unpack(first)[4]
            if status:
                self._refused(call, status, first, now)
                return
            check(call.rpc, call.kind, call.datagram, first)
            self._message(call, first, answerOf(call.rpc, call.kind, first, event.message), now)
        except Exception as error:
            self._stumbled(call, first, error)

    def _notArrived(self, event: Failed) -> None:
        call = self._transactions.find(event.transactionID) if event.isOurs else None
        if call is None or call.datagram[1] != event.managementClass:
            self._events.append(Dropped(f"an RMPP transfer has ended: {event.status.name}"))
            return
        self._fail(call, MADTransferError(event.status, event.byPeer, call.rpc, call.path, call.datagram))

    def _message(self, call: Call, first: bytes, answer: object, now: float) -> None:
        """End a call whose answer has come as a whole, after a table is decoded."""
        self._transactions.end(call)
        if isinstance(answer, Records):
            self._read(call, first, answer, now)
        else:
            self._end(call, answer, now)

    def _read(self, call: Call, first: bytes, records: Records, now: float) -> None:
        self._tables.pop(call, None)
        try:
            isDone = records.more(SLICE)
        except Exception as error:
            self._stumbled(call, first, error)
            return
        if isDone:
            self._end(call, records.decoded, now)
        else:
            self._tables[call] = first, records
