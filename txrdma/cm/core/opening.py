"""
The opening of a connection: REQ, REP, RTU, at the active end, at the passive end, and peer to peer.

Follows InfiniBand Architecture vol. 1, 12.9.5 (state diagrams), 12.9.7 and 12.10.4 (peer to peer).

Theory of operation. Each message is retransmitted until it is answered; an end that needs time sends an MRA,
at the latest when it gets a duplicate. L{txrdma.cm.core.exchange} has the time-outs and retries, and limits
the delay by MRAs. The RTU has no answer: if it is lost, the passive end repeats its REP, and the active one
its RTU. Anything that shows that the peer is ready replaces it: data, a DREQ or a LAP.

The opening ends as ESTABLISHED or ENDED. The ids can be reused at once if the peer cannot have been ready to
send. Otherwise C{lingers} is set, and they go through time-wait: when a passive end gives up after its REP,
when the peer withdraws its REP or sends a DREQ before our RTU, and after a rejection as stale. Of two ends
that connect to each other, the one with the higher GUID and queue pair number stays active; the other one
gives up its REQ and answers (C{overtaken}). Of two processes at one address only one receives REQs, which are
those of the other one, and gives up its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from txrdma.cm.core.events import (
    ConnectionEstablished,
    ConnectionRejected,
    ConnectionReplied,
    ConnectionRequested,
    ConnectionTimedOut,
)
from txrdma.cm.core.exchange import ExchangeCore, LONGEST_SERVICE, RetryPolicy
from txrdma.cm.layouts.messages import (
    checkFits,
    checkPrivateData,
    MessageKind,
    MRA,
    REJ,
    RejectReason,
    REP,
    REQ,
    RTU,
)
from txrdma.cm.layouts.paths import isLocal, lifeTimeOf, sharedPath
from txrdma.iba.types import GUID
from txrdma.kit.machines import Row, StateTable
from txrdma.kit.wire import Layout

_NO_REJECTION = REJ()


class OpeningInputs(Protocol):
    """The inputs of an opening: requests of its program, messages of its peer, and timeouts."""

    def connect(self) -> None:
        """The application connects."""

    def requested(self) -> None:
        """A REQ or a duplicate of it was received."""

    def overtaken(self) -> None:
        """A REQ was received from a peer that connects as well, and has precedence."""

    def accept(self) -> None:
        """The program answers a REQ."""

    def ready(self) -> None:
        """The program's queue pair is ready to send: the answer to a REP."""

    def reject(self) -> None:
        """The application rejects the connection."""

    def delay(self) -> None:
        """The program needs more time than the peer expects."""

    def cancel(self) -> None:
        """The program cancels the attempt."""

    def delayed(self) -> None:
        """The peer needs more time: it sent an MRA for a message of this end."""

    def replied(self) -> None:
        """A REP or a duplicate of it was received."""

    def rejected(self) -> None:
        """A REJ was received."""

    def confirmed(self) -> None:
        """The RTU was received, or a message that replaces a lost RTU: data, a DREQ, a LAP."""

    def expired(self) -> None:
        """The answer timed out, with retries left."""

    def exhausted(self) -> None:
        """The answer to the last retry timed out."""


class Opening(ExchangeCore):
    """
    The local end of the opening of one connection.

    @ivar isActive: the REQ of this end is in use, not that of the peer.
    @ivar isPeerToPeer: both ends may send a REQ; that of the peer is compared with ours.
    @ivar request: the REQ in use, of either end.
    @ivar reply: the REP that was sent or received; None before that.
    @ivar transactionID: transaction ID of all messages of the opening.
    @ivar lingers: after a failure: the peer may have been ready to send, so the IDs go to time-wait.
    """

    __slots__ = (
        *("_guid", "_private", "_refusal", "_service"),
        *(
            "isActive",
            "isPeerToPeer",
            "lingers",
            "localCommID",
            "remoteCommID",
            "reply",
            "request",
            "transactionID",
        ),
    )
    _final = frozenset({"ENDED", "ESTABLISHED"})

    def __init__(self, localCommID: int, guid: GUID) -> None:
        """@param guid: the local CA GUID, which identifies the connection in a REJ for a timeout."""
        self._guid = guid
        self.localCommID = localCommID
        self.remoteCommID = 0
        self.isActive = False
        self.lingers = False
        self.request = REQ()
        self.reply: REP | None = None
        self.transactionID = 0
        self._refusal = _NO_REJECTION
        self._service = LONGEST_SERVICE
        self._private = b""
        self.isPeerToPeer = False
        super().__init__(RetryPolicy(0, 0, 0))

    @property
    def isOver(self) -> bool:
        """True if the attempt has failed."""
        return self._stateName == _ENDED

    @property
    def isEstablished(self) -> bool:
        """True if the connection is established."""
        return self._stateName == _ESTABLISHED

    # Requests of a program

    def connect(self, request: REQ, transactionID: int, now: float, isPeerToPeer: bool = False) -> None:
        """
        Send a REQ to the peer.

        @param isPeerToPeer: the peer may request the same connection; one of the two REQs is used.
        """
        self.isActive = True
        self.request, self.transactionID, self.isPeerToPeer = request, transactionID, isPeerToPeer
        life = lifeTimeOf(request.primary)
        self._retryPolicy = RetryPolicy(request.remoteCMResponseTimeout, life, request.maxCMRetries)
        self._ask("connect", now)

    def accept(self, reply: REP, now: float) -> bool:
        """
        Answer a REQ by a REP; both communication IDs and the CA GUID are filled in.

        @return: False if the peer no longer waits; the same for all requests of this class.
        @raise InvalidRequest: there is no unanswered REQ, or the answer can't be encoded.
        """
        if self._stateName in (_REQ_RCVD, _MRA_REQ_SENT):
            reply = reply.replace(
                localCommID=self.localCommID, remoteCommID=self.remoteCommID, localCAGUID=self._guid
            )
            checkFits(reply)
            self.reply = reply
        return self._ask("accept", now)

    def ready(self, privateData: bytes, now: float) -> bool:
        """Answer a REP by an RTU: the queue pair can send."""
        checkPrivateData(privateData, 224)
        if not self.isEstablished:
            self._private = privateData
        return self._ask("ready", now)

    def reject(
        self, reason: RejectReason, now: float, information: bytes = b"", privateData: bytes = b""
    ) -> bool:
        """Answer a REQ or a REP by a REJ, or withdraw a REP."""
        checkPrivateData(information, 72, "information")
        checkPrivateData(privateData, 148)
        self._refusal = REJ(
            reason=reason,
            rejectInfoLength=len(information),
            additionalInfo=information.ljust(72, b"\0"),
            privateData=privateData.ljust(148, b"\0"),
        )
        return self._ask("reject", now)

    def delay(self, service: int, now: float, privateData: bytes = b"") -> bool:
        """Ask the peer to wait, by an MRA. C{service}: the encoded time until the answer."""
        checkFits(MRA(serviceTimeout=service))
        checkPrivateData(privateData, 222)
        if not self.isEstablished:  # then the private data is that of the RTU
            self._service, self._private = service, privateData
        return self._ask("delay", now)

    def cancel(self, now: float) -> bool:
        """Abandon the opening: the peer gets a REJ if it may be waiting."""
        self._refusal = REJ(reason=RejectReason.CONSUMER_REJECT)
        return self._ask("cancel", now)

    # What happens

    def confirmed(self, now: float) -> None:
        """Note that the peer must be ready: it sent data, a DREQ or a LAP."""
        self._now = now
        self._inputs.confirmed()

    def _handleMessage(self, message: Layout) -> None:
        if isinstance(message, REQ):
            self._receiveREQ(message)
        elif isinstance(message, REP):
            if self.isActive:
                self._inputs.replied()
        elif isinstance(message, RTU):
            self._inputs.confirmed()
        elif isinstance(message, MRA):
            waiting = MessageKind.REQ if self.isActive else MessageKind.REP
            if message.messageMRAed == waiting:
                self._inputs.delayed()
        elif isinstance(message, REJ):
            isAbsent = self.isPeerToPeer and message.reason == RejectReason.INVALID_SERVICE_ID
            if not isAbsent:  # else the peer may ask for the connection a moment later
                self._inputs.rejected()

    def _receiveREQ(self, request: REQ) -> None:
        if not self.isActive:
            self._inputs.requested()
        elif self.isPeerToPeer:
            # Another process at the same address does not receive this end's REQ.
            isOnlyReceived = isLocal(self.request.primary) and request.localCAGUID != self._guid
            if isOnlyReceived or _rank(request) > _rank(self.request):
                self._inputs.overtaken()

    # What transitions do

    def _sendREQ(self) -> None:
        self._sendUntilAnswered(self.request, self.transactionID)

    def _sendREP(self) -> None:
        assert self.reply is not None
        self._sendUntilAnswered(self.reply, self.transactionID)

    def _sendRTU(self) -> None:
        self._send(
            RTU(
                localCommID=self.localCommID,
                remoteCommID=self.remoteCommID,
                privateData=self._private.ljust(224, b"\0"),
            ),
            self.transactionID,
        )

    def _sendMRA(self) -> None:
        self._send(
            MRA(
                localCommID=self.localCommID,
                remoteCommID=self.remoteCommID,
                messageMRAed=MessageKind.REP if self.isActive else MessageKind.REQ,
                serviceTimeout=self._service,
                privateData=self._private.ljust(222, b"\0"),
            ),
            self.transactionID,
        )

    def _sendREJ(self) -> None:
        self._refuse(MessageKind.REP if self.isActive else MessageKind.REQ, self.localCommID)

    def _sendFirstREJ(self) -> None:
        self._refuse(MessageKind.REQ, 0)  # the peer does not know the local communication ID

    def _withdraw(self) -> None:
        self._refuse(MessageKind.LAP, self.localCommID)

    def _sendTimeout(self) -> None:
        self._refusal = REJ(
            reason=RejectReason.TIMEOUT,
            rejectInfoLength=8,
            additionalInfo=self._guid.raw.ljust(72, b"\0"),
        )
        self._withdraw()

    def _refuse(self, kind: MessageKind, localCommID: int) -> None:
        ids = {"localCommID": localCommID, "remoteCommID": self.remoteCommID}
        self._send(self._refusal.replace(messageRejected=kind, **ids), self.transactionID)

    def _takeRequest(self) -> None:
        self.isActive = False
        self.request = self._message.replace(primary=sharedPath(self._message.primary))
        self.transactionID = self._transaction
        self.remoteCommID = self.request.localCommID
        life = lifeTimeOf(self.request.primary)
        self._retryPolicy = RetryPolicy(self.request.localCMResponseTimeout, life, self.request.maxCMRetries)
        self._emit(ConnectionRequested(self.request))

    def _takeReply(self) -> None:
        self.reply = self._message
        self.remoteCommID = self._message.localCommID
        self._emit(ConnectionReplied(self._message))

    def _reportEstablished(self) -> None:
        self._emit(ConnectionEstablished(self._message if isinstance(self._message, RTU) else None))

    def _reportRejected(self) -> None:
        self.lingers = self.lingers or self._message.reason == RejectReason.STALE_CONNECTION
        self._emit(ConnectionRejected(self._message))

    def _reportTimedOut(self) -> None:
        self._emit(ConnectionTimedOut(MessageKind.REQ if self.isActive else MessageKind.REP))

    def _linger(self) -> None:
        self.lingers = True

    def _waitLonger(self) -> None:
        self._wait(self._message.serviceTimeout)


def _rank(request: REQ) -> tuple[bytes, int]:
    """Precedence of ends that connect to each other at the same time: the higher one is active."""
    return request.localCAGUID.raw, request.localQPN


_IDLE = "IDLE"
_REQ_SENT = "REQ_SENT"
_MRA_REQ_RCVD = "MRA_REQ_RCVD"
_REP_RCVD = "REP_RCVD"
_MRA_REP_SENT = "MRA_REP_SENT"
_REQ_RCVD = "REQ_RCVD"
_MRA_REQ_SENT = "MRA_REQ_SENT"
_REP_SENT = "REP_SENT"
_MRA_REP_RCVD = "MRA_REP_RCVD"
_ESTABLISHED = "ESTABLISHED"
_ENDED = "ENDED"

_In = OpeningInputs
_Do = Opening
_Row = Row[OpeningInputs, Opening]


def _rows() -> Iterator[_Row]:
    # Active: a REQ is out.
    yield _IDLE, _In.connect, _REQ_SENT, (_Do._sendREQ,)
    yield _REQ_SENT, _In.delayed, _MRA_REQ_RCVD, (_Do._waitLonger,)
    for here in (_REQ_SENT, _MRA_REQ_RCVD):
        yield here, _In.replied, _REP_RCVD, (_Do._stop, _Do._takeReply)
        yield here, _In.overtaken, _REQ_RCVD, (_Do._stop, _Do._takeRequest)
        yield here, _In.rejected, _ENDED, (_Do._stop, _Do._reportRejected)
        yield here, _In.expired, _REQ_SENT, (_Do._sendAgain,)
        yield here, _In.exhausted, _ENDED, (_Do._sendTimeout, _Do._reportTimedOut)
        yield here, _In.cancel, _ENDED, (_Do._stop, _Do._sendTimeout)
    # Active: a REP waits for its answer.
    for here in (_REP_RCVD, _MRA_REP_SENT):
        yield here, _In.ready, _ESTABLISHED, (_Do._sendRTU, _Do._reportEstablished)
        yield here, _In.replied, _MRA_REP_SENT, (_Do._sendMRA,)
        yield here, _In.delay, _MRA_REP_SENT, (_Do._sendMRA,)
        yield here, _In.reject, _ENDED, (_Do._sendREJ,)
        yield here, _In.cancel, _ENDED, (_Do._sendREJ,)
        yield here, _In.rejected, _ENDED, (_Do._linger, _Do._reportRejected)
        yield here, _In.confirmed, _ENDED, (_Do._linger,)  # a DREQ before our RTU
    yield _ESTABLISHED, _In.replied, _ESTABLISHED, (_Do._sendRTU,)
    # Passive: a REQ waits for its answer.
    yield _IDLE, _In.requested, _REQ_RCVD, (_Do._takeRequest,)
    for here in (_REQ_RCVD, _MRA_REQ_SENT):
        refuse = _Do._sendFirstREJ if here == _REQ_RCVD else _Do._sendREJ
        yield here, _In.accept, _REP_SENT, (_Do._sendREP,)
        yield here, _In.requested, _MRA_REQ_SENT, (_Do._sendMRA,)
        yield here, _In.delay, _MRA_REQ_SENT, (_Do._sendMRA,)
        yield here, _In.reject, _ENDED, (refuse,)
        yield here, _In.cancel, _ENDED, (refuse,)
        yield here, _In.rejected, _ENDED, (_Do._reportRejected,)
    # Passive: a REP is out.
    yield _REP_SENT, _In.delayed, _MRA_REP_RCVD, (_Do._waitLonger,)
    for here in (_REP_SENT, _MRA_REP_RCVD):
        yield here, _In.confirmed, _ESTABLISHED, (_Do._stop, _Do._reportEstablished)
        yield here, _In.rejected, _ENDED, (_Do._stop, _Do._reportRejected)
        yield here, _In.expired, _REP_SENT, (_Do._sendAgain,)
        yield here, _In.exhausted, _ENDED, (_Do._linger, _Do._sendTimeout, _Do._reportTimedOut)
        yield here, _In.reject, _ENDED, (_Do._stop, _Do._linger, _Do._withdraw)
        yield here, _In.cancel, _ENDED, (_Do._stop, _Do._linger, _Do._withdraw)


TABLE: StateTable[OpeningInputs, Opening] = StateTable(OpeningInputs, Opening, _rows())
Opening._table = TABLE
