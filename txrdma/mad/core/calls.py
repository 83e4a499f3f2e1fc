"""
Calls of one port: sending, retries, answers, redirections and timeouts.

Follows InfiniBand Architecture vol. 1, 13.4.6 (transactions), 13.4.8.1 (redirection), 13.5.4 (BUSY) and 13.6
(RMPP). Nothing here reads a clock or a socket; see L{txrdma.mad.agent} for that.

Theory of operation. A call is open from its first datagram to its end, and is found by the transaction ID of
a response. A response counts only if it has the same class, comes from the request's destination and fits the
request; otherwise it is dropped (another source), or the call fails (malformed). Every open call has a
deadline, so it ends exactly once, as an event: answered or failed. Cancelled calls end without one.

Some answers do not end a call. BUSY postpones its retransmission. A redirection sends it again to another
port, with a new transaction ID; if only a GID is known, another call queries the SA for the path first. A
segment of an RMPP transfer moves the deadline, and the last one delivers the message. Tables are decoded in
slices of L{SLICE} records, so that other events are not delayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf
from struct import Struct
from typing import Any, Final, NamedTuple, TYPE_CHECKING, Union

from txrdma.error import InvalidRequest, RDMAError, WireError
from txrdma.iba.path import IBPath
from txrdma.mad.core.answers import answerOf, check, HEADER, OFFSETS, Records, redirected, TABLES, whole
from txrdma.mad.core.datagrams import datagramOf
from txrdma.mad.core.timeouts import Timeouts
from txrdma.mad.core.transactions import Call, Due, Transactions
from txrdma.mad.core.transfers import isRMPP, RMPP_CLASSES, RMPPTransfers, TransferFailed, TransferReceived
from txrdma.mad.errors import MADClassError, MADError, MADTimeoutError, MADTransferError, silenceHint
from txrdma.mad.layouts.attributes import ManagementClass, Method, RPCS
from txrdma.mad.layouts.messages import ClassPortInfo, MAD_LENGTH, MADStatus
from txrdma.mad.layouts.sa import PathRecord
from txrdma.mad.paths import pathOf, toSA

if TYPE_CHECKING:
    from txrdma.interfaces import IMADPort

MOST_REDIRECTIONS: Final = 4

NEXT_SEGMENT_SECONDS: Final = 10.0
"""Shortest time to wait for the next segment of a response: Linux sends one again after 2 seconds."""

SLICE: Final = 4096
"""Records of a table that are decoded per reactor iteration, in some milliseconds."""

_unpack: Final = HEADER.unpack_from
_words: Final = Struct(">IH2xQH2xI").unpack_from
_PLAIN: Final = {0x01810181: 0x8000, 0x01010181: 0, 0x01040181: 0}
"""
Heads and status of good answers to Get and Set, by directed routes, by LID, and of performance management:
nearly all responses. L{Calls.received} handles them first, which saves a tenth of a call's time.
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


class Requested(NamedTuple):
    """
    A request, or another datagram that is not a response, was received.

    @ivar datagram: the datagram, or the first one of an RMPP transfer.
    @ivar message: bytes of the attribute.
    @ivar path: path of the request.
    """

    datagram: bytes
    message: bytes
    path: IBPath


class Dropped(NamedTuple):
    """
    A received datagram was dropped.

    @ivar breaksRules: True if the sender violates the specification.
    """

    reason: str
    breaksRules: bool = False


class InternalError(NamedTuple):
    """An exception in txrdma's code while a datagram was processed; its call has failed."""

    error: Exception


Event = Union[Call, Requested, Dropped, InternalError]
"""A call that has ended (without an event object around it, to save time), or another event."""

Packet = tuple[bytes, IBPath, float]
"""A datagram to send, its path, and the seconds in which an answer is awaited; 0 for none."""


class _RedirectedCall(NamedTuple):
    """A call that was redirected to a GID, while the SA is queried for the path."""

    call: Call
    target: IBPath
    status: int
    reply: bytes


class Calls:
    """
    Outgoing calls of one port, and RMPP transfers in both directions.

    @ivar wrongSources: number of answers that were dropped because of their source.
    @ivar isServing: True if requests of peers are served.
    """

    def __init__(self, port: IMADPort, random: Callable[[int], bytes]) -> None:
        """@param random: returns this many unpredictable bytes."""
        self.wrongSources = 0
        self.isServing = False
        self._port = port
        self._transactions: Transactions = Transactions(port.transactionIDBits, random)
        self._open, self._mask = self._transactions.open, self._transactions.mask
        self._timeouts = Timeouts()
        self._transfers = self._makeTransfers()
        self._tables: dict[Call, tuple[bytes, Records]] = {}
        self._redirected: dict[Call, _RedirectedCall] = {}
        self._packets: list[Packet] = []
        self._events: list[Event] = []

    def _makeTransfers(self) -> RMPPTransfers:
        port = self._port
        return RMPPTransfers(port.transactionIDBits, lambda path: port.endPort.senderOf(path))

    def __len__(self) -> int:
        return len(self._transactions)

    @property
    def sent(self) -> int:
        """Number of requests sent so far that expect an answer, with retries."""
        return self._transactions.begun + self._transactions.repeated

    @property
    def late(self) -> int:
        """Number of time-outs of requests."""
        return self._transactions.late

    def newIdentifier(self) -> int:
        """Draw a transaction ID: see L{Transactions.newIdentifier}."""
        return self._transactions.newIdentifier()

    # Requests.

    def ask(self, call: Call, path: IBPath, now: float, timeoutSeconds: float | None = None) -> bytes | None:
        """
        Begin a call. Its end is an event, unless calls of this name have no response.

        @param timeoutSeconds: time to wait for an answer; by default the time that path and peer may take.
        @return: the datagram to send, which bypasses L{outgoing} (a twentieth of a call's time); None if the
            request is an RMPP transfer.
        @raise RDMAError: the call cannot be sent, and gets no event.
        @raise WireError: a value does not fit into its field.
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
        elif not 0 <= timeoutSeconds < inf:
            raise InvalidRequest(f"a timeout is a finite number of seconds, not {timeoutSeconds}")
        call.timeoutSeconds = timeoutSeconds
        if rpc.answer is None:
            return datagram
        self._transactions.begin(call, now)
        if rpc.method is not _GET_MULTI:
            return datagram
        if self._port.doesRMPP:
            return whole(datagram, call.content)
        self._transfers.send(datagram, call.content, path, now)
        self._takePackets()
        return None

    def answer(self, datagram: bytes, path: IBPath, message: bytes | None, now: float) -> None:
        """
        Send the answer to a request.

        @param path: leads to the requester.
        @param message: the whole message, if the answer is an RMPP transfer; C{datagram} is its first frame.
        @raise ResourceExhausted: too many answers are outstanding.
        """
        if message is None or self._port.doesRMPP:
            self._packets.append((datagram if message is None else whole(datagram, message), path, 0.0))
        else:
            self._transfers.send(datagram, message, path, now)
            self._takePackets()

    def withdraw(self, datagram: bytes, path: IBPath) -> None:
        """Cancel the RMPP transfer of an answer that could not be sent: it must not follow another answer."""
        self._transfers.withdraw(datagram, path)

    def forget(self, call: Call) -> None:
        """Cancel a call without an event, because its Deferred was cancelled."""
        self._transactions.end(call)
        if self._tables:
            self._tables.pop(call, None)
        if self._redirected:
            for query in [each for each, waiting in self._redirected.items() if waiting.call is call]:
                del self._redirected[query]
                self.forget(query)
        if call.rpc.managementClass in RMPP_CLASSES:
            self._transfers.forget(call.datagram)
            self._takePackets()

    def clear(self) -> list[Call]:
        """Cancel all calls, and return them: the caller ends them."""
        left = [
            *self._transactions.clear(),
            *self._tables,
            *(waiting.call for waiting in self._redirected.values()),
        ]
        calls = [call for call in left if call not in self._redirected]
        self._tables.clear()
        self._redirected.clear()
        self._packets.clear()
        self._transfers = self._makeTransfers()
        return calls

    # Received datagrams.

    def received(self, datagram: bytes, envelope: object, now: float) -> Call | None:
        """
        Process a received datagram. Never raises; on malformed input the matching call fails.

        @return: the call that this datagram completes, in the usual case of a response in one datagram:
            there is no event then (a tenth of a call's time). Otherwise None.
        """
        call: Call | None = None
        try:
            if len(datagram) == MAD_LENGTH:
                head, status, identifier, attributeID, modifier = _words(datagram)
                call = self._open.get(identifier & self._mask)
                # Nearly all datagrams are a response in one datagram, without an error, as it was requested.
                # Whatever differs is judged below, once more from the beginning.
                if (
                    call is not None
                    and status == _PLAIN.get(head)
                    and attributeID == (kind := call.kind).attributeID
                    and modifier == call.modifier
                    and call.rpc.answer is _GET_RESP
                    and call.datagram[1] == datagram[1]
                    # The status is not 0 on directed routes only (the D bit), where all LIDs are permissive.
                    and (status or self._port.isFrom(envelope, call.path))
                ):
                    answer: Any = kind.decode(datagram, kind.dataOffset or _PLAIN_OFFSET)
                    self._transactions.end(call)
                    if kind is not ClassPortInfo:
                        call.answer = answer
                        return call
                    self._succeed(call, answer, now)
                    return None
            elif not (self._port.doesRMPP and isRMPP(datagram)):
                self._badLength(datagram, envelope)
                return None
            call = None  # the datagram may belong to no call, and then an error below must not fail one
            _, managementClass, _, method, _, identifier, _, _ = _unpack(datagram)
            # TrapRepress answers a Trap, although its method has no response bit.
            if not method & _RESPONSE and method != _TRAP_REPRESS:
                self._requested(datagram, envelope, now)
                return None
            call = self._open.get(identifier & self._mask)
            if call is not None and managementClass != call.datagram[1]:
                call = None  # of another class, with the same transaction ID by chance
            if (
                call is not None
                and managementClass != _DIRECTED
                and not self._port.isFrom(envelope, call.path)
            ):
                self._wrongSource(call)
            elif managementClass in RMPP_CLASSES and isRMPP(datagram) and not self._port.doesRMPP:
                self._responseSegment(call, datagram, envelope, now)
            elif call is not None:  # otherwise the response is late
                self._answered(call, datagram, now)
        except Exception as error:
            self._failedBy(call, datagram, error)
        return None

    def _answered(self, call: Call, datagram: bytes, now: float) -> None:
        """Process a response that L{received} does not handle itself."""
        _, managementClass, _, method, status, _, _, _ = _unpack(datagram)
        if managementClass == _DIRECTED:
            status &= _NO_DIRECTION
        if status:
            self._refused(call, status, datagram, now)
            return
        kind = call.kind
        check(call.rpc, kind, call.datagram, datagram)
        offset = kind.dataOffset or OFFSETS[managementClass]
        if method in _TABLES:  # from a port that reassembles transfers
            if not isRMPP(datagram):
                raise WireError(kind.__name__, 24, "the table is not an RMPP transfer")
            self._messageReceived(call, datagram, answerOf(call.rpc, kind, datagram, datagram[offset:]), now)
            return
        answer = kind.decode(datagram, offset)
        self._transactions.end(call)
        self._succeed(call, answer, now)

    def _succeed(self, call: Call, answer: Any, now: float) -> None:
        """Complete a call; remember the response time in a ClassPortInfo."""
        if call.kind is ClassPortInfo:
            self._timeouts.learn(call.path, call.datagram[1], answer.responseTimeValue)
        self._end(call, answer, now)

    def undeliverable(self, datagram: bytes, reason: str, now: float) -> None:
        """
        Handle a request that the system could not deliver.

        @param datagram: at least its first 24 bytes.
        """
        call = self._transactions.find(_IDENTIFIER.unpack_from(datagram)[0]) if len(datagram) >= 16 else None
        if call is not None:
            self._resend(self._transactions.undeliverable(call, now), reason, now)

    def unsent(self, datagram: bytes, error: Exception) -> None:
        """Fail the call of a request that could not be sent."""
        call = self._callOf(datagram)
        if call is not None:
            self._fail(call, error)

    # Timers.

    def deadline(self) -> float | None:
        """Time at which to call L{expired}; None for never."""
        if self._tables:
            return -inf
        first = self._transactions.deadline()
        transfers = self._transfers.deadline()
        return transfers if first is None else first if transfers is None else min(first, transfers)

    def expired(self, now: float) -> None:
        """Retry or give up calls, resend segments, decode more of a table; called at L{deadline}."""
        for call, (first, records) in tuple(self._tables.items()):
            self._decodeRecords(call, first, records, now)
        self._resend(self._transactions.expired(now), "no answer", now)
        deadline = self._transfers.deadline()
        if deadline is not None and deadline <= now:
            self._transfers.expired(now)
            self._processTransfers(now)

    # Output.

    def outgoing(self) -> Iterable[Packet]:
        """Take the packets to send."""
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

    # Ends of calls.

    def _end(self, call: Call, answer: object, now: float) -> None:
        """End a call with its answer; that of a query for a redirection continues the redirected call."""
        if self._redirected and (waiting := self._redirected.pop(call, None)) is not None:
            self._redirectResolved(waiting, answer, now)
            return
        call.answer = answer
        self._events.append(call)

    def _fail(self, call: Call, error: Exception) -> None:
        """End a call with an error; for the query of a redirection, the call that was redirected."""
        self.forget(call)
        if self._redirected and (waiting := self._redirected.pop(call, None)) is not None:
            self._redirectFailed(waiting, error)
            return
        call.error = error
        self._events.append(call)

    def _failedBy(self, call: Call | None, datagram: bytes, error: Exception) -> None:
        """Fail a call after a malformed response, or an exception in txrdma's code."""
        if not isinstance(error, WireError):
            self._events.append(InternalError(error))
        if call is not None:
            self._fail(call, MADClassError(str(error), call.rpc, call.path, call.datagram, datagram))

    def _wrongSource(self, call: Call) -> None:
        """Drop a response from another port than the request's destination."""
        self.wrongSources += 1
        self._events.append(Dropped(f"{call.rpc.name} by {call.path} is answered from another port"))

    def _badLength(self, datagram: bytes, envelope: object) -> None:
        """Drop a datagram of a wrong length (IBA 13.4.2); the call that it answers fails."""
        call = self._callOf(datagram) if len(datagram) >= 16 and datagram[3] & _RESPONSE else None
        if call is None:
            self._events.append(Dropped(f"a datagram has {len(datagram)} bytes instead of {MAD_LENGTH}"))
        elif datagram[1] != _DIRECTED and not self._port.isFrom(envelope, call.path):
            self._wrongSource(call)
        else:
            reason = f"{call.rpc.name}: the answer has {len(datagram)} bytes instead of {MAD_LENGTH}"
            self._fail(call, MADClassError(reason, call.rpc, call.path, call.datagram, datagram))

    def _callOf(self, datagram: bytes) -> Call | None:
        """Open call of this transaction ID and class; None without one."""
        call = self._transactions.find(_IDENTIFIER.unpack_from(datagram)[0])
        return call if call is not None and call.datagram[1] == datagram[1] else None

    def _resend(self, due: Due, why: str, now: float) -> None:
        for call in due.again:
            if call.rpc.managementClass in RMPP_CLASSES and self._hasBegun(call):
                # The peer may still know the transfer by its transaction ID, and would continue it.
                self.forget(call)
                self._restart(call, call.path, now)
            else:
                self._packets.append((call.datagram, call.path, call.timeoutSeconds))
        for call in due.late:
            reason = f"{call.rpc.name}: {why}{silenceHint(call.rpc, call.path, call.keys.mkey)}"
            self._fail(call, MADTimeoutError(reason, call.rpc, call.path, call.datagram))

    def _hasBegun(self, call: Call) -> bool:
        """True during an RMPP transfer of the request or of the answer."""
        return call.rpc.method is _GET_MULTI or self._transfers.isAnswering(call.datagram)

    def _restart(self, call: Call, path: IBPath, now: float) -> None:
        """Send the request again with a new transaction ID, perhaps to another node."""
        try:
            datagram = self.ask(call, path, now, call.timeoutSeconds)
            if datagram is not None:
                self._packets.append((datagram, path, call.timeoutSeconds))
        except (RDMAError, WireError) as error:
            self._fail(call, error)

    # Error responses.

    def _refused(self, call: Call, status: int, datagram: bytes, now: float) -> None:
        """Handle an error status: wait after BUSY, follow REDIRECT, or fail the call."""
        refusal = MADStatus(status)
        if refusal.isBusy and self._transactions.busy(call, now):
            return
        why = ""
        if refusal.isRedirect and call.rpc.managementClass != _SUBN:
            target = redirected(call.path, datagram)
            if target is not None and call.redirections < MOST_REDIRECTIONS:
                self.forget(call)
                call.redirections += 1
                if target.dlid or not self._port.endPort.lid:
                    self._restart(call, target, now)
                else:
                    self._resolveRedirect(_RedirectedCall(call, target, status, datagram), now)
                return
            why = " without a target" if target is None else f" for the {call.redirections + 1}th time"
        self._fail(call, MADError(call.rpc, call.path, status, call.datagram, datagram, why))

    def _resolveRedirect(self, waiting: _RedirectedCall, now: float) -> None:
        """Query the SA for the path to a GID. Redirections of that query count like those of the call."""
        end, call, dgid = self._port.endPort, waiting.call, waiting.target.dgid
        if not end.gids or dgid is None:  # a target with a LID needs no query
            self._redirectFailed(waiting, InvalidRequest("the local port has no GID"))
            return
        wanted = PathRecord.query(dgid=dgid, sgid=end.gids[0], reversible=True, numbPath=1)
        rpc = RPCS["SubnAdmGet"]
        query = Call(rpc, PathRecord, wanted.record.encode(), 0, call.keys, wanted.mask)
        query.redirections = call.redirections
        query.timeoutSeconds = call.timeoutSeconds
        query.retriesLeft = call.retriesLeft
        self._redirected[query] = waiting
        self._restart(query, toSA(end), now)

    def _redirectResolved(self, waiting: _RedirectedCall, record: Any, now: float) -> None:
        target = waiting.target
        try:
            path = replace(pathOf(record), pkey=target.pkey, dqpn=target.dqpn, qkey=target.qkey)
        except ValueError as error:
            self._redirectFailed(waiting, error)
        else:
            self._restart(waiting.call, path, now)

    def _redirectFailed(self, waiting: _RedirectedCall, error: Exception) -> None:
        call, target, status, reply = waiting
        why = f" to {target.dgid}, and no path is known: {error}"
        self._fail(call, MADError(call.rpc, call.path, status, call.datagram, reply, why))

    # RMPP transfers.

    def _requested(self, datagram: bytes, envelope: object, now: float) -> None:
        """Process a request, or a packet of an RMPP transfer that another node has begun."""
        if not self.isServing:
            return
        path = self._port.pathOf(envelope)
        if isRMPP(datagram) and not self._port.doesRMPP:
            self._segmentReceived(datagram, path, now)
        else:
            self._events.append(Requested(datagram, datagram[OFFSETS[datagram[1]] :], path))

    def _responseSegment(self, call: Call | None, datagram: bytes, envelope: object, now: float) -> None:
        """Process an RMPP packet of a response, or an acknowledgement of a request."""
        path = self._port.pathOf(envelope)
        if call is not None or self._transfers.expects(datagram, path):
            self._segmentReceived(datagram, path, now, call)

    def _segmentReceived(self, datagram: bytes, path: IBPath, now: float, call: Call | None = None) -> None:
        try:
            if self._transfers.received(datagram, path, now) and call is not None:
                seconds = max(call.timeoutSeconds, NEXT_SEGMENT_SECONDS)
                self._transactions.extend(call, now + seconds)
        except WireError as error:
            self._events.append(Dropped(f"malformed RMPP packet from {path}: {error}", breaksRules=True))
        self._processTransfers(now, path)

    def _takePackets(self) -> None:
        """Send the packets of RMPP transfers."""
        self._packets += [(packet.datagram, packet.path, 0.0) for packet in self._transfers.outgoing()]

    def _processTransfers(self, now: float, path: IBPath | None = None) -> None:
        """Send packets of RMPP transfers, and end calls whose transfers have ended."""
        for event in self._transfers.events():
            if isinstance(event, TransferReceived):
                self._transferReceived(event, path, now)
            elif isinstance(event, TransferFailed):
                self._transferFailed(event)
        self._takePackets()

    def _transferReceived(self, event: TransferReceived, path: IBPath | None, now: float) -> None:
        """Process the message of a complete transfer: a request of the node at C{path}, or a response."""
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
            self._messageReceived(call, first, answerOf(call.rpc, call.kind, first, event.message), now)
        except Exception as error:
            self._failedBy(call, first, error)

    def _transferFailed(self, event: TransferFailed) -> None:
        call = self._transactions.find(event.transactionID) if event.isLocal else None
        if call is None or call.datagram[1] != event.managementClass:
            self._events.append(Dropped(f"an RMPP transfer has ended: {event.status.name}"))
            return
        self._fail(call, MADTransferError(event.status, event.byPeer, call.rpc, call.path, call.datagram))

    def _messageReceived(self, call: Call, first: bytes, answer: object, now: float) -> None:
        """Complete a call whose response has arrived; a table is decoded first."""
        self._transactions.end(call)
        if isinstance(answer, Records):
            self._decodeRecords(call, first, answer, now)
        else:
            self._end(call, answer, now)

    def _decodeRecords(self, call: Call, first: bytes, records: Records, now: float) -> None:
        """Decode a slice of a table; complete the call after the last one."""
        self._tables.pop(call, None)
        try:
            isDone = records.more(SLICE)
        except Exception as error:
            self._failedBy(call, first, error)
            return
        if isDone:
            self._end(call, records.decoded, now)
        else:
            self._tables[call] = first, records
