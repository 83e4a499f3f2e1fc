"""
The CLC handshake of both ends, on a TCP connection that will carry the application's data if it fails.

Follows RFC 7609, 3.5 and 4.2 to 4.4; timeouts are Linux's. This module does no I/O and reads no clock.

Both cores have C{received(data, now)}, C{expired(now)}, C{deadline()}, C{outgoing()}, C{events()} and
C{done}: once it is true, bytes on TCP are not CLC (but see C{mayCross}). Server::

    bytes -> Proposed -> accept(message, now) -> Confirmed -> established()     it is SMC-R
                      -> decline(diagnosis, now) -> FellBack                    anywhere before established()

The client's Proposal is sent at once -> Accepted -> confirm(message, now) -> established(). Either side gets
FellBack if the peer declines or does not answer, and Failed if the connection is not usable even for TCP.
L{txrdma.smc.terms.offer} decides on the terms.

Theory of operation. Both ends have the same states: I{sniffing} (does the peer support CLC?), I{waiting} for
the expected reply, I{deciding} (the owner checks the message and acquires a link), I{linking}, I{crossing}
and I{over}. While an end decides, received bytes are only stored, except for a Decline, which ends the wait.
An end that declines falls back at once, but the peer may have sent CLC before it reads the Decline: in
I{crossing} such messages are dropped, until the peer's own Decline, bytes that are not CLC, the end of the
connection, or a deadline shows that the application's data begin. A client that joins an existing link group
uses SMC-R as soon as it has sent its Confirm, so declining after that is no fallback but an error.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Protocol, Union

from txrdma.error import RDMAError, WireError
from txrdma.kit.machines import machineBuilder
from txrdma.kit.values import frozen
from txrdma.smc.terms.offer import Agreement, check, checkConfirm, Offer, VERSIONS
from txrdma.smc.wire.clc import (
    Accept,
    Confirm,
    Decline,
    decodeFirst,
    Diagnosis,
    MAX_LENGTH,
    Message,
    Proposal,
)

CLC_TIMEOUT = 6.0
"""Seconds to wait for a CLC message."""

LATE_DECLINE_TIMEOUT = 1.0
"""Seconds to wait for CLC messages of the peer that cross the local Decline."""


@frozen
class Proposed:
    """The client has proposed SMC: answer by C{accept} or C{decline}."""

    proposal: Proposal


@frozen
class Accepted:
    """The server has sent an Accept that is consistent with the offer: answer by C{confirm} or C{decline}."""

    accept: Accept
    agreement: Agreement


@frozen
class Confirmed:
    """The client has confirmed: set up the link (first contact), then call C{established} or C{decline}."""

    confirm: Confirm


@frozen
class FellBack:
    """
    The handshake has failed: the connection continues as plain TCP.

    @ivar reason: the local reason; C{PEERDECL} if the peer declined.
    @ivar peerDiagnosis: the peer's reason, if it declined.
    @ivar data: the first bytes for the application.
    @ivar outOfSync: the peer does not know the local link group, which must not be used any more.
    """

    reason: Diagnosis
    peerDiagnosis: Diagnosis | None
    data: bytes
    outOfSync: bool = False


@frozen
class ApplicationData:
    """Bytes for the application that arrived after L{FellBack}."""

    data: bytes


@frozen
class HandshakeFailed:
    """The connection can use neither SMC-R nor TCP: reset it."""

    error: RDMAError


Question = Union[Proposed, Accepted, Confirmed]
"""CLC messages of the peer that the owner of a handshake answers."""

Event = Union[Question, FellBack, ApplicationData, HandshakeFailed]


class _HandshakeInputs(Protocol):
    """The inputs of a CLC handshake's state machine."""

    def proposal(self) -> None:
        """The peer sent a Proposal (RFC 7609, A.2.1)."""

    def reply(self) -> None:
        """The peer sent the expected Accept or Confirm."""

    def declined(self, decline: Decline) -> None:
        """The peer sent a Decline (RFC 7609, A.2.4)."""

    def stray(self, error: WireError) -> None:
        """An unexpected message was received, or bytes that are not CLC."""

    def answer(self, message: Accept | Confirm, now: float) -> None:
        """The local end agrees to SMC-R, by this Accept or Confirm."""

    def decline(self, diagnosis: Diagnosis, now: float) -> None:
        """The local end declines SMC-R, for this reason."""

    def established(self) -> None:
        """The link carries the connection: the handshake has succeeded."""

    def expired(self, now: float) -> None:
        """The deadline of the current state has passed."""

    def ended(self) -> None:
        """The peer has closed the TCP connection."""

    def withdrawn(self) -> None:
        """The announced client continues without SMC."""


class _Core:
    """
    The data that transitions of a handshake act on.

    @ivar buffer: received bytes, from the current message on; C{whole}: length of that message.
    @ivar listening: received bytes are parsed as CLC; otherwise they are stored until a decision.
    @ivar announced: the peer is known to support SMC.
    @ivar sniffing: the peer has not sent a whole message yet, and may not support SMC.
    @ivar mayCross: unexpected CLC of the peer may be in flight.
    @ivar version: version of SMC-R that both ends use, as far as it is known.
    """

    def __init__(self, announced: bool, peerID: bytes, version: int) -> None:
        self.announced = announced
        self.peerID = peerID
        self.version = version
        self.sniffing = not announced
        self.buffer = bytearray()
        self.whole = 0
        self.output = bytearray()
        self.pending: list[Event] = []
        self.deadline: float | None = None
        self.listening = True
        self.fellBack = False
        self.mayCross = False
        self.done = False
        self.isEstablished = False

    def wait(self, until: float | None) -> None:
        self.listening = True
        self.deadline = until

    def pause(self) -> None:
        """Stop parsing received bytes, without a deadline, until C{accept}, C{confirm} or C{decline}."""
        self.listening = False
        self.deadline = None

    def finish(self) -> None:
        self.pause()
        self.done = True

    def consume(self) -> None:
        """Remove the processed message from the input."""
        self.sniffing = False
        del self.buffer[: self.whole]
        self.whole = 0

    def rest(self) -> bytes:
        data = bytes(self.buffer)
        self.buffer.clear()
        return data

    def send(self, message: Message) -> None:
        self.output += message.encode()

    def fallBack(
        self, reason: Diagnosis, peerDiagnosis: Diagnosis | None = None, outOfSync: bool = False
    ) -> None:
        """Fall back to TCP from the next byte on."""
        self.finish()
        self.fellBack = True
        self.pending.append(FellBack(reason, peerDiagnosis, self.rest(), outOfSync))

    def giveUp(self, now: float) -> None:
        """Decline because of a timeout; a slow peer reads the Decline before later bytes."""
        self.decline(Diagnosis.TIMEOUT_CL, now + LATE_DECLINE_TIMEOUT)

    def decline(self, diagnosis: Diagnosis, until: float) -> None:
        """Decline, and fall back to TCP; until the peer has read that, it may send more CLC."""
        self.send(Decline.inVersion(self.version, self.peerID, diagnosis))
        self.fellBack = True
        self.pending.append(FellBack(diagnosis, None, b""))
        self.wait(until)

    def letPass(self) -> None:
        """Pass all further bytes to the application: no more CLC can arrive."""
        self.finish()
        if self.buffer:
            self.pending.append(ApplicationData(self.rest()))

    def fail(self, error: RDMAError) -> None:
        self.finish()
        self.buffer.clear()
        self.pending.append(HandshakeFailed(error))


_Machine = Callable[[_Core], _HandshakeInputs]


@lru_cache(2)
def _machine(server: bool) -> _Machine:
    """
    Build the state machine of a server (sniffing, deciding, waiting for Confirm, linking) or a client
    (waiting for Accept, deciding, linking).
    """
    builder = machineBuilder(_HandshakeInputs, _Core)
    first, second = ("sniffing", "waiting") if server else ("waiting", "sniffing")
    states = {
        name: builder.state(name) for name in (first, second, "deciding", "linking", "crossing", "over")
    }
    sniffing, waiting, deciding = states["sniffing"], states["waiting"], states["deciding"]
    linking, crossing, over = states["linking"], states["crossing"], states["over"]

    @sniffing.upon(_HandshakeInputs.proposal).to(deciding)
    def proposal(inputs: _HandshakeInputs, core: _Core) -> None:
        core.consume()
        core.pause()

    @sniffing.upon(_HandshakeInputs.reply).to(over)
    def misplaced(inputs: _HandshakeInputs, core: _Core) -> None:
        notCLC(inputs, core, WireError("CLC", 4, "it begins in the middle"))

    @sniffing.upon(_HandshakeInputs.stray).to(over)
    def notCLC(inputs: _HandshakeInputs, core: _Core, error: WireError) -> None:
        if core.announced and error.offset:  # it has the eyecatcher, so it is not application data
            core.fail(error)
        else:
            core.fallBack(Diagnosis.PEERNOSMC)

    @sniffing.upon(_HandshakeInputs.expired).to(crossing)
    def silence(inputs: _HandshakeInputs, core: _Core, now: float) -> None:
        if core.announced:
            core.giveUp(now)
        else:
            core.fallBack(Diagnosis.PEERNOSMC)

    @sniffing.upon(_HandshakeInputs.withdrawn).to(over)
    def withdrawn(inputs: _HandshakeInputs, core: _Core) -> None:
        core.fallBack(Diagnosis.PEERNOSMC)

    @states[first].upon(_HandshakeInputs.ended).to(over)
    def endedEarly(inputs: _HandshakeInputs, core: _Core) -> None:
        if not core.announced or not (server or core.buffer):  # a server may be out of resources
            core.fallBack(Diagnosis.PEERNOSMC)

    @waiting.upon(_HandshakeInputs.expired).to(crossing)
    def noReply(inputs: _HandshakeInputs, core: _Core, now: float) -> None:
        core.giveUp(now)

    @waiting.upon(_HandshakeInputs.reply).to(linking if server else deciding)
    def reply(inputs: _HandshakeInputs, core: _Core) -> None:
        core.consume()
        if server:
            core.wait(None)
        else:
            core.pause()

    @deciding.upon(_HandshakeInputs.answer).to(waiting if server else linking)
    def answer(inputs: _HandshakeInputs, core: _Core, message: Accept | Confirm, now: float) -> None:
        core.version = message.version
        core.send(message)
        core.wait(now + CLC_TIMEOUT if server else None)

    @linking.upon(_HandshakeInputs.established).to(over)
    def established(inputs: _HandshakeInputs, core: _Core) -> None:
        if core.buffer:
            core.fail(WireError("CLC", 0, f"{len(core.buffer)} bytes where nothing may follow"))
        else:
            core.isEstablished = True
            core.finish()

    def peerDeclined(inputs: _HandshakeInputs, core: _Core, decline: Decline) -> None:
        core.consume()
        core.fallBack(Diagnosis.PEERDECL, decline.diagnosis, decline.outOfSync)

    def violated(inputs: _HandshakeInputs, core: _Core, error: WireError) -> None:
        core.fail(error)

    def violatedBy(inputs: _HandshakeInputs, core: _Core) -> None:
        core.fail(WireError("CLC", 4, "a message out of sequence"))

    def declineNow(inputs: _HandshakeInputs, core: _Core, diagnosis: Diagnosis, now: float) -> None:
        core.decline(diagnosis, now)

    def declineLate(inputs: _HandshakeInputs, core: _Core, diagnosis: Diagnosis, now: float) -> None:
        core.decline(diagnosis, now + LATE_DECLINE_TIMEOUT)

    def declineUnasked(inputs: _HandshakeInputs, core: _Core, diagnosis: Diagnosis, now: float) -> None:
        if core.announced:
            declineLate(inputs, core, diagnosis, now)
        else:
            core.fallBack(diagnosis)  # the peer may not support CLC

    def crossed(inputs: _HandshakeInputs, core: _Core) -> None:
        core.consume()

    def crossedDecline(inputs: _HandshakeInputs, core: _Core, decline: Decline) -> None:
        core.consume()
        core.letPass()

    def nothingCrossed(inputs: _HandshakeInputs, core: _Core, error: WireError) -> None:
        core.letPass()

    def peerWasSilent(inputs: _HandshakeInputs, core: _Core, now: float) -> None:
        core.mayCross = True
        core.letPass()

    def endedCrossing(inputs: _HandshakeInputs, core: _Core) -> None:
        core.letPass()

    for state in (sniffing, waiting, deciding, linking):
        state.upon(_HandshakeInputs.declined).to(over)(peerDeclined)
    for state in (waiting, linking):
        state.upon(_HandshakeInputs.stray).to(over)(violated)
        state.upon(_HandshakeInputs.proposal).to(over)(violatedBy)
        state.upon(_HandshakeInputs.decline).to(crossing)(declineLate)
    linking.upon(_HandshakeInputs.reply).to(over)(violatedBy)
    deciding.upon(_HandshakeInputs.decline).to(crossing)(declineNow)
    sniffing.upon(_HandshakeInputs.decline).to(crossing)(declineUnasked)
    crossing.upon(_HandshakeInputs.proposal).loop()(crossed)
    crossing.upon(_HandshakeInputs.reply).loop()(crossed)
    crossing.upon(_HandshakeInputs.declined).to(over)(crossedDecline)
    crossing.upon(_HandshakeInputs.stray).to(over)(nothingCrossed)
    crossing.upon(_HandshakeInputs.expired).to(over)(peerWasSilent)
    crossing.upon(_HandshakeInputs.ended).to(over)(endedCrossing)
    for state in (states[second], deciding, linking, over):
        state.upon(_HandshakeInputs.ended).loop().returns(None)
    for state in (waiting, deciding, linking, crossing, over):
        state.upon(_HandshakeInputs.withdrawn).loop().returns(None)
    for state in (crossing, over):
        # Decisions that took too long.
        state.upon(_HandshakeInputs.answer).loop().returns(None)
        state.upon(_HandshakeInputs.decline).loop().returns(None)
        state.upon(_HandshakeInputs.established).loop().returns(None)
    return builder.build()


class _Handshake:
    """
    The base of a server's and a client's CLC handshake.

    @ivar state: the data of the state machine, which an owner may read.
    """

    _reply: type[Accept] | type[Confirm]

    isJoining: bool = False
    """The client joins an existing link group: after its Confirm it never uses TCP."""

    def __init__(self, machine: _Machine, announced: bool, peerID: bytes, version: int) -> None:
        self.state = _Core(announced, peerID, version)
        self._inputs = machine(self.state)

    @property
    def done(self) -> bool:
        """Whether the handshake has ended: further bytes are not CLC."""
        return self.state.done

    @property
    def mayCross(self) -> bool:
        """Whether late CLC may precede the TCP data; L{txrdma.smc.wire.clc.LateCLCFilter} strips it."""
        return self.state.mayCross

    @property
    def isFull(self) -> bool:
        """Whether reading must pause, because too many bytes wait for a decision."""
        core = self.state
        return not core.listening and not core.done and len(core.buffer) >= MAX_LENGTH

    def deadline(self) -> float | None:
        return self.state.deadline

    def outgoing(self) -> bytes:
        """Take the bytes to send by TCP, each of them once."""
        output = self.state.output
        if not output:
            return b""
        data = bytes(output)
        output.clear()
        return data

    def events(self) -> list[Event]:
        events, self.state.pending = self.state.pending, []
        return events

    def established(self) -> None:
        """Complete the handshake, because the link carries the connection now."""
        self._inputs.established()

    def decline(self, diagnosis: Diagnosis, now: float) -> None:
        """Decline SMC before C{established}; C{SYNCERR} requests that the peer forgets the link group."""
        self._inputs.decline(diagnosis, now)
        self._read(now)
        self.expired(now)

    def expired(self, now: float) -> None:
        if self.state.deadline is not None and self.state.deadline <= now:
            self._inputs.expired(now)

    def ended(self) -> None:
        """Handle the end of the peer's TCP data; stored bytes that need not be CLC are the application's."""
        self._inputs.ended()

    def received(self, data: bytes, now: float) -> None:
        """Process bytes received by TCP: CLC, or after a fallback the application's."""
        core = self.state
        if core.done:
            if core.fellBack:
                core.pending.append(ApplicationData(data))
            return
        core.buffer += data
        self._read(now)
        if core.buffer and not core.listening and not core.done:
            self._heedDecline()

    def _heedDecline(self) -> None:
        """Process a Decline while the local end decides: a Confirm sent after it would contradict it."""
        core = self.state
        with suppress(WireError):
            size, message = decodeFirst(core.buffer)
            if isinstance(message, Decline):
                core.whole = size
                core.pending.clear()  # the peer's Proposal or Accept needs no answer any more
                self._inputs.declined(message)

    def _read(self, now: float) -> None:
        core = self.state
        while core.listening and core.buffer:
            try:
                size, message = decodeFirst(core.buffer)
            except WireError as error:
                self._inputs.stray(error)
                return
            if message is None:
                if core.deadline is None and core.sniffing:
                    core.deadline = now + CLC_TIMEOUT  # it begins like CLC: limit the wait for the rest
                return
            core.whole = size
            self._process(message, now)

    def _process(self, message: Message, now: float) -> None:
        if isinstance(message, Decline):
            self._inputs.declined(message)
        elif isinstance(message, self._reply):
            self._inputs.reply()
            core = self.state
            if not core.fellBack and not core.done:
                self._replied(message, now)
            elif self.isJoining and not core.done:
                core.fail(WireError("CLC", 4, "a client is on SMC-R, which we have declined since"))
        elif isinstance(message, Proposal):
            self._proposed(message, now)
        else:
            self._inputs.stray(WireError("CLC", 4, f"{type(message).__name__} has no place here"))

    def _replied(self, message: Accept | Confirm, now: float) -> None:
        raise NotImplementedError

    def _proposed(self, proposal: Proposal, now: float) -> None:
        raise NotImplementedError


class ServerHandshake(_Handshake):
    """
    The server's end of a CLC handshake.

    @param peerID: the local peer ID, for Decline.
    @param announced: a carrier has announced that the client supports SMC: wait C{CLC_TIMEOUT} for its
        Proposal. Otherwise anything but a whole valid Proposal is application data.
    @param version: the highest supported version of SMC.
    """

    _reply = Confirm

    def __init__(self, now: float, *, peerID: bytes, announced: bool, version: int = max(VERSIONS)) -> None:
        super().__init__(_machine(server=True), announced, peerID, 1)
        self._highest = version
        self._proposal: Proposal | None = None
        self._accept: Accept | None = None
        self._isConfirmed = False
        if announced:
            self.state.deadline = now + CLC_TIMEOUT

    def withdrawn(self) -> None:
        """Handle that the announced client continues without SMC; ignored if it has already proposed."""
        self._inputs.withdrawn()

    def accept(self, message: Accept, now: float) -> None:
        self._accept = message
        self.isJoining = not message.firstContact
        self._inputs.answer(message, now)
        self._read(now)

    def decline(self, diagnosis: Diagnosis, now: float) -> None:
        """
        Decline SMC before C{established}.

        A client that has confirmed an existing link group uses SMC-R already, and may not read a Decline: its
        connection ends with an error.
        """
        if self._isConfirmed and self.isJoining and not self.state.done:
            self.state.fail(WireError("CLC", 4, f"a client is on SMC-R, which we decline: {diagnosis.name}"))
        else:
            super().decline(diagnosis, now)

    def _proposed(self, proposal: Proposal, now: float) -> None:
        self._inputs.proposal()
        core = self.state
        if not core.fellBack and not core.done:
            core.version = min(proposal.version, self._highest)
            self._proposal = proposal
            core.pending.append(Proposed(proposal))

    def _replied(self, message: Accept | Confirm, now: float) -> None:
        assert isinstance(message, Confirm) and self._proposal is not None and self._accept is not None
        self._isConfirmed = True
        objection = checkConfirm(message, self._accept, self._proposal)
        if objection is None:
            self.state.pending.append(Confirmed(message))
        else:
            self.decline(objection, now)


class ClientHandshake(_Handshake):
    """The client's end of a CLC handshake; the Proposal is in C{outgoing} immediately."""

    _reply = Accept

    def __init__(self, now: float, offer: Offer) -> None:
        super().__init__(_machine(server=False), True, offer.proposal.peerID, offer.proposal.version)
        self._offer = offer
        self.state.output += offer.raw
        self.state.deadline = self._until = now + CLC_TIMEOUT

    def confirm(self, message: Confirm, now: float) -> None:
        """Answer the server's Accept with this Confirm; decline if the server may have given up meanwhile."""
        if now < self._until or message.firstContact:
            self._inputs.answer(message, now)
            self._read(now)
        else:  # a client that joins a group uses SMC-R after its Confirm, and reads no Decline
            self.decline(Diagnosis.TIMEOUT_CL, now)

    def _proposed(self, proposal: Proposal, now: float) -> None:
        self._inputs.stray(WireError("CLC", 4, "a client proposes to a client"))

    def _replied(self, message: Accept | Confirm, now: float) -> None:
        assert isinstance(message, Accept)
        self.state.version = min(message.version, self.state.version)
        agreement = check(message, self._offer)
        if isinstance(agreement, Diagnosis):
            self.decline(agreement, now)
        else:
            self.state.pending.append(Accepted(message, agreement))
