"""
Fuzz targets of SMC-R: CLC, LLC and CDC messages, and the state machines that receive them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from harness import decoder, Target

from txrdma.error import WireError
from txrdma.iba.types import GID, MACAddress, MTU, QPN
from txrdma.iba.verbs import GIDType
from txrdma.smc.flow.ring import Ring
from txrdma.smc.group._groupstate import LinkEnd
from txrdma.smc.group._linkgroup import LinkGroupProtocol
from txrdma.smc.handshake._machine import ApplicationData, FellBack, ServerHandshake
from txrdma.smc.terms.offer import (
    Abilities,
    Agreement,
    Candidate,
    check,
    Choice,
    choose,
    Offer,
    propose,
    Role,
)
from txrdma.smc.wire import clc, llc
from txrdma.smc.wire.cdc import CDC, CDC_LENGTH, unpackFrom
from txrdma.test.support.captures import messages, names, SMC_GO, streams


def _clcMessages() -> Iterator[bytes]:
    yield from (SMC_GO["proposal"], SMC_GO["accept"], SMC_GO["decline"])
    for name in names():
        for _, _, content in streams(name):
            try:
                while content:
                    size, _ = clc.decodeFirst(content)
                    yield content[:size]
                    content = content[size:]
            except WireError:
                pass  # the rest of the stream is plain TCP


def _llcAndCDCMessages() -> Iterator[bytes]:
    yield SMC_GO["cdc"]
    for name in names():
        for _, message in messages(name):
            yield message


_CUTS = (*range(13), 40, 41, 100, 200)
"""Where the bytes of a client are divided: each byte of a header and of an eyecatcher arrives alone."""


def _handshake(raw: bytes) -> None:
    """A server whose client does not speak SMC passes on all bytes that it received."""
    server = ServerHandshake(0.0, peerID=bytes(8), announced=False)
    received = b""
    for begin, end in pairwise((*(cut for cut in _CUTS if cut < len(raw)), len(raw))):
        server.received(raw[begin:end], 0.0)
    server.expired(100.0)
    for event in server.events():
        if isinstance(event, FellBack) and event.reason is not clc.Diagnosis.PEERNOSMC:
            return  # the client does speak SMC: it sent a CLC message
        if isinstance(event, (FellBack, ApplicationData)):
            received += event.data
        else:
            return  # the client sent a Proposal
    if received != raw:
        raise AssertionError(f"the server passed on {received!r}")


_EID = clc.enterpriseID("TXRDMA")
_CANDIDATE = Candidate(bytes(8), GID.fromIP("10.77.0.1"), GIDType.ROCE_V2, MACAddress(bytes(6)), MTU.MTU_1024)
_ABILITIES = Abilities(ueids=(_EID,), maxLinks=2)
_OFFER = propose((_CANDIDATE,), _ABILITIES, "10.77.0.1")


def _negotiate(raw: bytes) -> None:
    """Any Proposal or Accept is answered by a decision of a version that the peer speaks."""
    try:
        message = clc.decode(raw)
    except WireError:
        return
    if isinstance(message, clc.Proposal):
        choice = choose(message, (_CANDIDATE,), _ABILITIES)
        if isinstance(choice, Choice) and choice.agreement.version > message.version:
            raise AssertionError(f"{choice} of {message}")
    elif isinstance(message, clc.Accept) and isinstance(_OFFER, Offer):
        agreement = check(message, _OFFER)
        if isinstance(agreement, Agreement) and agreement.version != message.version:
            raise AssertionError(f"{agreement} by {message}")


_END = LinkEnd(MACAddress(bytes(6)), GID(bytes(16)), QPN(1))


def _linkGroup(raw: bytes) -> None:
    """A link group sends only valid messages, and reports no events after its end."""
    for role in Role:
        group = LinkGroupProtocol(role, _END)
        group.confirm(0.0, _END)
        for at in range(0, len(raw), llc.LLC_LENGTH):
            hadEnded = group.state == "ended"
            group.received(raw[at : at + llc.LLC_LENGTH], 0.0)
            for _, answer in group.outgoing():
                llc.decode(answer)
            if group.events() and hadEnded:
                raise AssertionError("an event after the end of the link group")


def _ring(raw: bytes) -> None:
    """The cursors of a ring stay within both buffers, whatever cursors the peer sends."""
    ring = Ring(1 << 14, 1 << 15, 1)
    ring.take(5000, 5000)
    for at in range(0, len(raw) - CDC_LENGTH + 1, CDC_LENGTH):
        try:
            ring.received(unpackFrom(raw, at))
        except WireError:
            return
        if not (0 <= ring.readable <= ring.size and 0 <= ring.space <= ring.peerSize):
            raise AssertionError(f"{ring.readable} readable bytes, room for {ring.space} bytes")
        ring.consume(ring.readable // 2)
        ring.message()


TARGETS = {
    "CLC": decoder(clc.decode, _clcMessages),
    "LLC": decoder(llc.decode, _llcAndCDCMessages),
    "CDC": decoder(CDC.decode, _llcAndCDCMessages),
    "CLC offer": Target(_negotiate, _clcMessages),
    "CLC handshake": Target(_handshake, _clcMessages),
    "link group": Target(_linkGroup, _llcAndCDCMessages),
    "ring": Target(_ring, _llcAndCDCMessages),
}
