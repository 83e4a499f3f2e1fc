"""
Remote procedure calls by management datagrams: each returns a Deferred.

Follows InfiniBand Architecture vol. 1, 13.4 (datagrams), 13.4.8.1 (redirection) and 13.5.4 (transactions).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from os import urandom
from struct import Struct
from typing import Any, Final

from typing_extensions import Unpack
from zope.interface import implementer

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from txrdma.error import DeviceUnavailable, InvalidRequest, RDMAError, ResourceExhausted, WireError
from txrdma.iba.path import IBPath
from txrdma.interfaces import IMADAgent, IMADPort, IMADReceiver
from txrdma.mad._answers import answerOf, check, HEADER, OFFSETS, Records, redirected, TABLES, whole
from txrdma.mad._frames import Keys, NO_KEYS
from txrdma.mad._long import Failed, isLong, LongMessages, Received, RMPP_CLASSES
from txrdma.mad._timeouts import Timeouts
from txrdma.mad._transaction import Transactions
from txrdma.mad.attributes import Attribute, ManagementClass, Method, RPC, RPCS
from txrdma.mad.calls import Call
from txrdma.mad.datagrams import Datagrams
from txrdma.mad.errors import MADClassError, MADError, MADTimeoutError, MADTransferError, silence
from txrdma.mad.messages import ClassPortInfo, MAD_LENGTH, MADStatus
from txrdma.mad.paths import toAdministration
from txrdma.mad.portwatch import PortListener, PortLost, PortReturned, PortWatch, Return, WATCH_SECONDS
from txrdma.mad.redirection import Redirections
from txrdma.mad.rpcs import CallOptions, checkedKind, RPCs
from txrdma.mad.sa import PathRecord, Query
from txrdma.mad.tables import Tables

_log = Logger()

RETRIES: Final = 3
MOST_REDIRECTIONS: Final = 4
LONG_PATIENCE_SECONDS: Final = 10.0
"""How long the next piece of a long message is awaited, at least: Linux sends one again after 2 seconds."""

_unpack: Final = HEADER.unpack_from
_IDENTIFIER: Final = Struct(">8xQ")
_RESPONSE: Final = 0x80
_TRAP_REPRESS: Final = 0x07
_DIRECTED: Final = int(ManagementClass.SUBN_DIRECTED)
_SUBN: Final = ManagementClass.SUBN_LID
_ADM: Final = ManagementClass.SUBN_ADM
_NO_DIRECTION: Final = 0x7FFF
_GET_MULTI: Final = Method.GET_MULTI
_TABLES: Final = frozenset(map(int, TABLES))


@implementer(IMADAgent, IMADReceiver)
class MADAgent(RPCs):
    """
    Calls through one port.

    @ivar timeoutSeconds: how long answers are awaited; None is as long as the subnet may take (13.4.6.2).
    @ivar strangers: how many answers were dropped that came from somebody else than the peer asked.
    """

    def __init__(
        self,
        reactor: IReactorTime,
        port: IMADPort,
        *,
        timeoutSeconds: float | None = None,
        retries: int = RETRIES,
        keys: Keys = NO_KEYS,
        reopen: Callable[[], IMADPort] | None = None,
        watchSeconds: float = WATCH_SECONDS,
    ) -> None:
        """
        @param port: is the agent's from now on, and closed with it.
        @param reopen: opens the port anew after it was lost, and is tried again and again while it raises
            C{RDMAError}; without it a lost port is the agent's end.
        @param watchSeconds: how often to look at the port for those who L{watch} it.
        @param keys: of calls that say none.
        """
        self.port = port
        self.timeoutSeconds = timeoutSeconds
        self.retries = retries
        self.keys = keys
        self.reactor = reactor
        self._seconds = reactor.seconds
        self._send = port.send
        self._isFrom = port.isFrom
        self.strangers = 0
        self._transactions: Transactions[Call] = Transactions(port.transactionIDBits, urandom)
        self._begin = self._transactions.begin
        self._newIdentifier = self._transactions.newIdentifier
        self._find = self._transactions.find
        self._timer: IDelayedCall | None = None
        self._timerAt = 0.0
        self._closed = ""
        self._timeouts = Timeouts()
        self._datagram = Datagrams().datagram
        self._redirections = Redirections(self._askForWay, self._issueThere)
        self._tables: Tables[Call] = Tables(reactor, self._stumbled)
        self._long = LongMessages(port.transactionIDBits)
        self._longTimer: IDelayedCall | None = None
        self._longTimerAt = 0.0
        self._server: Callable[[bytes, bytes, IBPath], None] | None = None
        self._serverEnd: Callable[[], None] = lambda: None
        self._watch = PortWatch(reactor, lambda: self.port, watchSeconds)
        self._return = Return(reactor, reopen, self._returned) if reopen is not None else None
        port.start(self)

    def __repr__(self) -> str:
        return f"<MADAgent {self.port.name} {len(self._transactions)} outstanding>"

    # IMADAgent

    def call(
        self,
        rpc: str,
        payload: Any,
        path: IBPath | None = None,
        attributeModifier: int = 0,
        **options: Unpack[CallOptions],
    ) -> Deferred[Any]:
        """Make a call: see L{RPCs.call}."""
        try:
            keys, mask = options.get("keys") or self.keys, options.get("componentMask", 0)
            call = self._made(rpc, payload, attributeModifier, keys, mask)
            path = path or self._toSA(call.rpc)
            seconds, retries = options.get("timeoutSeconds"), options.get("retries")
            call.timeoutSeconds = (
                self._patienceFor(path, call.rpc.managementClass) if seconds is None else seconds
            )
            call.retriesLeft = self.retries if retries is None else retries
            call.chosenID = options.get("transactionID", 0)
            self._issue(call, path)
        except WireError as error:  # a value of the caller's
            return fail(InvalidRequest(str(error)))
        except RDMAError as error:
            return fail(error)
        if self._closed:  # the port was lost by sending
            return fail(DeviceUnavailable(self._closed))
        return succeed(None) if call.rpc.answer is None else call.awaited()

    def issue(self, call: Call, path: IBPath) -> None:
        """
        Make a call that was put together already, and that hears of its end itself: for who makes very many.

        @raise RDMAError: nothing was sent, and C{call} hears nothing.
        """
        call.keys = self.keys
        call.forget = self._forget
        call.timeoutSeconds = self._patienceFor(path, call.rpc.managementClass)
        call.retriesLeft = self.retries
        self._issue(call, path)

    def newTransactionID(self) -> int:
        """
        Draw a transaction ID that nobody could foresee, for a call or a datagram that names its own.

        @raise ResourceExhausted: all are on their way.
        """
        return self._newIdentifier()

    def send(self, datagram: bytes, path: IBPath) -> None:
        """
        Send a datagram as it stands, for protocols that keep their own transactions: no answer is awaited.

        @param datagram: 256 bytes, headers included: see L{frame <txrdma.mad._frames.frame>}.
        @raise RDMAError: it cannot be sent.
        """
        if self._closed:
            raise DeviceUnavailable(self._closed)
        self._send(datagram, path)

    def close(self) -> None:
        """Give up all calls, and close the port. Twice is fine."""
        self._end("the agent is closed")
        self._watch.stop()
        if self._return is not None:
            self._return.stop()
        self.port.close()

    def watch(self, listener: PortListener, isLooking: bool = True) -> Callable[[], None]:
        """
        Tell of the port's loss and return, and of its changes; the answer ends it.

        @param isLooking: whether changes matter that the port does not tell of by itself.
        """
        return self._watch.add(listener, isLooking)

    def _toSA(self, rpc: RPC) -> IBPath:
        """The way of a call for which none is named."""
        if rpc.managementClass is not _ADM:
            raise InvalidRequest(f"{rpc.name}: a path has to lead to the peer that is asked")
        end = self.port.endPort
        if not end.smLID:
            raise DeviceUnavailable("no subnet manager is known to our port, so none can be asked")
        return toAdministration(end)

    def _made(self, name: str, payload: Any, modifier: int, keys: Keys, mask: int) -> Call:
        more = b""
        if type(payload) is Query:
            payload, mask, more = payload
        kind = checkedKind(name, payload)
        rpc = RPCS[name]
        content = b"" if kind is payload else payload.encode() + more
        if kind.vendorClass is not None:
            rpc = replace(rpc, managementClass=kind.vendorClass)
            keys = keys._replace(oui=kind.oui)
        return Call(rpc, kind, content, modifier, keys, mask, self._forget)

    def _forget(self, call: Call) -> None:
        """Nobody wants the answer any more."""
        self._transactions.end(call)
        self._redirections.forget(call)
        self._tables.forget(call)
        if call.rpc.managementClass in RMPP_CLASSES and not self._closed:
            self._long.forget(call.datagram)
            self._longTurn()

    def _issue(self, call: Call, path: IBPath) -> None:
        """Send it for the first time, or to somebody else."""
        if self._closed:
            raise DeviceUnavailable(self._closed)
        identifier = call.chosenID
        if not identifier:
            identifier = self._newIdentifier()
        elif call.rpc.answer is not None:
            self._transactions.check(identifier)
        call.identifier = identifier
        datagram = call.datagram = self._datagram(call, path, identifier)
        call.path = path
        rpc = call.rpc
        if rpc.answer is None:
            self._send(datagram, path)
            return
        self._begin(call, self._seconds())
        try:
            if rpc.method is not _GET_MULTI:
                self._send(datagram, path, call.timeoutSeconds)
            elif self.port.doesRMPP:
                self._send(whole(datagram, call.content), path, call.timeoutSeconds)
            else:
                self._long.send(datagram, call.content, path, self._seconds())
                for packet in self._long.outgoing():
                    self._send(packet.datagram, packet.path)
                self._longTurn()
        except RDMAError:
            self._forget(call)
            raise
        if self._timer is None or call.deadline < self._timerAt:
            self._reschedule()

    def _patienceFor(self, path: IBPath, managementClass: int) -> float:
        if self.timeoutSeconds is not None:
            return self.timeoutSeconds
        return self._timeouts.seconds(path, managementClass, self.port.endPort.subnetTimeout)

    # IMADReceiver

    def received(self, datagram: bytes, envelope: object) -> None:
        """Take a datagram that has come. Whatever that is, this comes back, and the call concerned ends."""
        call: Call | None = None
        try:
            if len(datagram) != MAD_LENGTH and not (self.port.doesRMPP and isLong(datagram)):
                self._misshapen(datagram, envelope)
                return
            base, managementClass, version, method, status, identifier, attributeID, modifier = _unpack(
                datagram
            )
            if not method & _RESPONSE and method != _TRAP_REPRESS:
                self._requested(datagram, envelope)
                return
            call = self._find(identifier)
            if call is not None and managementClass != _DIRECTED:
                if managementClass != call.datagram[1]:
                    call = None  # another's: it only has the same transaction
                elif not self._isFrom(envelope, call.path):
                    self._estranged(call)
                    return
            if managementClass in RMPP_CLASSES and isLong(datagram) and not self.port.doesRMPP:
                self._longAnswer(call, datagram, envelope)
                return
            if call is None:
                return  # late, or not ours
            if managementClass == _DIRECTED:
                if call.datagram[1] != _DIRECTED:
                    return
                status &= _NO_DIRECTION
            if status:
                self._refused(call, status, datagram)
                return
            kind = call.kind
            if (
                method != call.rpc.answer
                or attributeID != kind.attributeID
                or modifier != call.modifier
                or base != 1
                or version != call.datagram[2]
            ):
                check(call.rpc, kind, call.datagram, datagram)
            offset = kind.dataOffset or OFFSETS[managementClass]
            if method in _TABLES:  # a port that joins long messages brings them whole
                if not isLong(datagram):
                    raise WireError(kind.__name__, 24, "the table is no long message")
                self._told(call, datagram, answerOf(call.rpc, kind, datagram, datagram[offset:]))
                return
            answer: Any = kind.decode(datagram, offset)
            self._transactions.end(call)
            if kind is ClassPortInfo:
                self._timeouts.learn(call.path, managementClass, answer.responseTimeValue)
            call.answered(answer)
        except Exception as error:
            self._stumbled(call, datagram, error)

    def _stumbled(self, call: Call | None, datagram: bytes, error: Exception) -> None:
        """An answer means nothing, or we cannot deal with it: the call concerned ends by that."""
        if not isinstance(error, WireError):
            _log.failure("while {port} took a datagram", port=self.port.name)
        if call is not None:
            self._forget(call)
            call.failed(MADClassError(str(error), call.rpc, call.path, call.datagram, datagram))

    def _estranged(self, call: Call) -> None:
        """Somebody answers who was not asked."""
        self.strangers += 1
        _log.debug("{rpc} by {path} is answered by somebody else", rpc=call.rpc.name, path=call.path)

    def _misshapen(self, datagram: bytes, envelope: object) -> None:
        """One that is too short or too long to be one (IBA 13.4.2)."""
        call = self._callOf(datagram) if len(datagram) >= 16 and datagram[3] & _RESPONSE else None
        if call is None:
            _log.debug("something of {length} bytes is no datagram", length=len(datagram))
            return
        if datagram[1] != _DIRECTED and not self._isFrom(envelope, call.path):
            self._estranged(call)
            return
        self._forget(call)
        said = f"{call.rpc.name}: the answer has {len(datagram)} bytes instead of {MAD_LENGTH}"
        call.failed(MADClassError(said, call.rpc, call.path, call.datagram, datagram))

    def serve(self, server: Callable[[bytes, bytes, IBPath], None], ended: Callable[[], None]) -> None:
        """
        Hand requests to this.

        @param server: gets the datagram, or a long message's first one; what it holds for the attribute; and
            the way that it took.
        @param ended: is called when no more will come.
        @raise ResourceExhausted: somebody else gets them already.
        """
        if self._server is not None:
            raise ResourceExhausted(f"the requests of {self.port.name} go to another server already")
        self._server, self._serverEnd = server, ended

    def answer(self, datagram: bytes, path: IBPath, message: bytes | None = None) -> None:
        """
        Answer a request: C{path} leads to who has asked.

        @param message: what the datagram is the first frame of, when it is a long one.
        """
        if self._closed:
            return
        if message is None or self.port.doesRMPP:
            self._send(datagram if message is None else whole(datagram, message), path)
        else:
            self._long.send(datagram, message, path, self._seconds())
            self._longTurn()

    def _requested(self, datagram: bytes, envelope: object) -> None:
        """Somebody asks us, or goes on with a long message."""
        if self._server is None:
            return
        path = self.port.pathOf(envelope)
        if isLong(datagram) and not self.port.doesRMPP:
            self._longReceived(datagram, path)
        else:
            self._server(datagram, datagram[OFFSETS[datagram[1]] :], path)

    # Long messages.

    def _longReceived(self, datagram: bytes, path: IBPath, call: Call | None = None) -> None:
        try:
            if self._long.received(datagram, path, self._seconds()) and call is not None:
                patience = max(call.timeoutSeconds, LONG_PATIENCE_SECONDS)
                self._transactions.extend(call, self._seconds() + patience)
        except WireError as error:
            _log.warn("{path} sends nonsense: {error}", path=path, error=error)
        self._longTurn(path)

    def _longTurn(self, path: IBPath | None = None) -> None:
        """Send what is to be sent, and tell what has ended."""
        for event in self._long.events():
            if isinstance(event, Received):
                self._longArrived(event, path)
            elif isinstance(event, Failed):
                self._longFailed(event)
        for packet in self._long.outgoing():
            try:
                self._send(packet.datagram, packet.path)
            except RDMAError as error:  # as though it were lost
                _log.debug("{path}: {error}", path=packet.path, error=error)
        self._rescheduleLong()

    def _longFailed(self, event: Failed) -> None:
        """A long message has not arrived."""
        call = self._transactions.find(event.transactionID) if event.isOurs else None
        if call is None or call.datagram[1] != event.managementClass:
            _log.debug("a long message has ended: {status.name}", status=event.status)
            return
        self._forget(call)
        call.failed(MADTransferError(event.status, event.byPeer, call.rpc, call.path, call.datagram))

    def _longArrived(self, event: Received, path: IBPath | None) -> None:
        first = event.first
        if not first[3] & _RESPONSE:
            if self._server is not None and path is not None:
                self._server(first, event.message, path)
            return
        call = self._callOf(first)
        if call is None:
            return
        status = _unpack(first)[4]
        if status:
            self._refused(call, status, first)
            return
        try:
            check(call.rpc, call.kind, call.datagram, first)
            self._told(call, first, answerOf(call.rpc, call.kind, first, event.message))
        except Exception as error:
            self._stumbled(call, first, error)

    def _told(self, call: Call, first: bytes, answer: Attribute | Records) -> None:
        """A long answer is here; a table is still to be decoded."""
        self._transactions.end(call)
        if isinstance(answer, Records):
            self._tables.read(call, first, answer)
        else:
            call.answered(answer)

    def _callOf(self, answer: bytes) -> Call | None:
        """Whose answer it is."""
        call = self._transactions.find(_IDENTIFIER.unpack_from(answer)[0])
        return call if call is not None and call.datagram[1] == answer[1] else None

    def _rescheduleLong(self) -> None:
        if self._closed:
            return  # by who got an answer just now
        deadline = self._long.deadline()
        if self._longTimer is not None:
            if deadline is not None and self._longTimerAt <= deadline:
                return  # it finds out then
            self._longTimer.cancel()
            self._longTimer = None
        if deadline is not None:
            self._longTimerAt = deadline
            delay = max(0.0, deadline - self._seconds())
            self._longTimer = self.reactor.callLater(delay, self._longExpired)

    def _longExpired(self) -> None:
        self._longTimer = None
        self._long.expired(self._seconds())
        self._longTurn()

    def _longAnswer(self, call: Call | None, datagram: bytes, envelope: object) -> None:
        """A packet of a long answer, or about a long question."""
        path = self.port.pathOf(envelope)
        if call is not None or self._long.expects(datagram, path):
            self._longReceived(datagram, path, call)

    def undeliverable(self, datagram: bytes, reason: str) -> None:
        """The system says that one of ours went nowhere."""
        call = self._transactions.find(_IDENTIFIER.unpack_from(datagram)[0]) if len(datagram) >= 16 else None
        if call is not None:
            again, late = self._transactions.undeliverable(call, self._seconds())
            self._goOn(again, late, reason)

    def portLost(self, reason: str) -> None:
        """Fail all calls, tell who watches the port, and try to open it anew."""
        if self._closed:
            return
        self._end(reason)
        self._watch.tell(PortLost(reason))
        if self._return is not None:
            self._return.start()

    def portChanged(self, wantsRegistration: bool) -> None:
        """Tell who watches the port that it is another one now."""
        self._watch.changed(wantsRegistration)

    def _returned(self, port: IMADPort) -> None:
        """The port is open again."""
        self.port, self._send, self._isFrom = port, port.send, port.isFrom
        self._long = LongMessages(port.transactionIDBits)
        self._closed = ""
        port.start(self)
        self._watch.tell(PortReturned(port.endPort))

    def _refused(self, call: Call, status: int, datagram: bytes) -> None:
        """BUSY, redirected, or an error."""
        said = MADStatus(status)
        if said.isBusy and self._transactions.busy(call, self._seconds()):
            self._reschedule()
            return
        why = ""
        if said.isRedirect and call.rpc.managementClass != _SUBN:
            way = redirected(call.path, datagram)
            if way is not None and call.redirections < MOST_REDIRECTIONS:
                self._forget(call)
                call.redirections += 1
                if way.dlid or not self.port.endPort.lid:
                    self._issueThere(call, way)
                else:
                    self._redirections.follow(call, way, self.port.endPort, status, datagram)
                return
            why = " to nobody" if way is None else f" for the {call.redirections + 1}th time"
        self._forget(call)
        call.failed(MADError(call.rpc, call.path, status, call.datagram, datagram, why))

    def _askForWay(self, query: Query[PathRecord], redirections: int) -> Deferred[Any]:
        """Ask the administration, whose own redirections count like those of the call that this is for."""
        call = self._made("SubnAdmGet", query, 0, self.keys, 0)
        call.redirections = redirections
        answer = call.awaited()
        self.issue(call, toAdministration(self.port.endPort))
        return answer

    def _issueThere(self, call: Call, path: IBPath) -> None:
        """Send it to whom an answer has named."""
        try:
            self._issue(call, path)
        except (RDMAError, WireError) as error:
            call.failed(error)

    # Time.

    def _reschedule(self) -> None:
        deadline = self._transactions.deadline()
        if deadline is None:
            return
        if self._timer is not None:
            if self._timerAt <= deadline:
                return
            self._timer.cancel()
        self._timerAt = deadline
        self._timer = self.reactor.callLater(max(0.0, deadline - self._seconds()), self._expired)

    def _expired(self) -> None:
        self._timer = None
        again, late = self._transactions.expired(self._seconds())
        try:
            self._goOn(again, late, "no answer")
        finally:
            self._reschedule()

    def _goOn(self, again: Sequence[Call], late: Sequence[Call], why: str) -> None:
        for call in again:
            if self._transactions.find(call.identifier) is not call:
                continue  # who heard of another one's end has cancelled it
            try:
                if call.rpc.managementClass in RMPP_CLASSES and self._hasBegun(call):
                    self._forget(call)
                    self._issue(call, call.path)
                else:
                    self._send(call.datagram, call.path, call.timeoutSeconds)
            except Exception as error:
                if not isinstance(error, RDMAError):
                    _log.failure("while {port} sent a request again", port=self.port.name)
                self._forget(call)
                call.failed(error)
        for call in late:
            if call.rpc.managementClass in RMPP_CLASSES:
                self._forget(call)
            said = f"{call.rpc.name}: {why}{silence(call.rpc, call.path, call.keys.mkey)}"
            call.failed(MADTimeoutError(said, call.rpc, call.path, call.datagram))

    def _hasBegun(self, call: Call) -> bool:
        """Whether a long question or answer is on its way: it cannot be begun again by the same name."""
        return call.rpc.method is Method.GET_MULTI or self._long.isAnswering(call.datagram)

    def _end(self, reason: str) -> None:
        if self._closed:
            return
        self._closed = reason
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._longTimer is not None:
            self._longTimer.cancel()
            self._longTimer = None
        for call in (*self._transactions.clear(), *self._tables.clear()):
            call.failed(DeviceUnavailable(reason))
        self._serverEnd()
