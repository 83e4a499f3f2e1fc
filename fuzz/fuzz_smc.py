"""
Decoders of SMC-R: CLC, LLC and CDC messages; and the cores that hear them from a peer.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness import decoder, Target

from txrdma.error import WireError
from txrdma.iba.types import GID, MACAddress, MTU, QPN
from txrdma.iba.verbs import GIDType
from txrdma.smc.group._linkgroup import LinkEnd, LinkGroup, Role
from txrdma.smc.handshake._machine import ApplicationData, FellBack, ServerHandshake
from txrdma.smc.handshake._offer import Abilities, Agreement, Candidate, check, Choice, choose, Offer, propose
from txrdma.smc.stream._ring import Ring
from txrdma.smc.wire import clc, llc
from txrdma.smc.wire.cdc import CDC, CDC_LENGTH, unpackFrom
from txrdma.test.support.captures import messages, names, SMC_GO, streams


def _clc() -> Iterator[bytes]:
    yield from (SMC_GO["proposal"], SMC_GO["accept"], SMC_GO["decline"])
    for name in names():
        for _, _, content in streams(name):
            try:
                while content:
                    size, _ = clc.decodeFirst(content)
                    yield content[:size]
                    content = content[size:]
            except WireError:
                pass  # it was plain TCP, or began to be


def _messages() -> Iterator[bytes]:
    yield SMC_GO["cdc"]
    for name in names():
        for _, message in messages(name):
            yield message


def _sniffed(raw: bytes) -> None:
    """What does not become SMC comes out again, every byte."""
    server = ServerHandshake(0.0, peerID=bytes(8), announced=False)
    got = b""
    for byte in raw:
        server.received(bytes((byte,)), 0.0)
    server.expired(100.0)
    for event in server.events():
        if isinstance(event, FellBack) and event.reason is not clc.Diagnosis.PEERNOSMC:
            return  # it was CLC
        if isinstance(event, (FellBack, ApplicationData)):
            got += event.data
        else:
            return  # it was a Proposal
    if got != raw:
        raise AssertionError(f"{got!r} came out")


_EID = clc.enterpriseID("TXRDMA")
_OWN = Candidate(bytes(8), GID.fromIP("10.77.0.1"), GIDType.ROCE_V2, MACAddress(bytes(6)), MTU.MTU_1024)
_ABILITIES = Abilities(ueids=(_EID,), maxLinks=2)
_OFFER = propose((_OWN,), _ABILITIES, "10.77.0.1")


def _offered(raw: bytes) -> None:
    """Whatever is proposed or accepted, there is a decision."""
    try:
        message = clc.decode(raw)
    except WireError:
        return
    if isinstance(message, clc.Proposal):
        choice = choose(message, (_OWN,), _ABILITIES)
        if isinstance(choice, Choice) and choice.agreement.version > message.version:
            raise AssertionError(f"{choice} of {message}")
    elif isinstance(message, clc.Accept) and isinstance(_OFFER, Offer):
        agreement = check(message, _OFFER)
        if isinstance(agreement, Agreement) and agreement.version != message.version:
            raise AssertionError(f"{agreement} by {message}")


_END = LinkEnd(MACAddress(bytes(6)), GID(bytes(16)), QPN(1))


def _group(raw: bytes) -> None:
    """A group ends at most once, and its answers are messages."""
    for role in Role:
        group = LinkGroup(role, _END)
        group.confirm(0.0, _END)
        ends = 0
        for at in range(0, len(raw), llc.LLC_LENGTH):
            group.received(raw[at : at + llc.LLC_LENGTH], 0.0)
            for _, answer in group.outgoing():
                llc.decode(answer)
            wasOver, ends = ends, ends + (group.state == "ended")
            if wasOver and group.events():
                raise AssertionError("it went on after its end")
            group.events()


def _ring(raw: bytes) -> None:
    """Cursors stay where they can be."""
    ring = Ring(1 << 14, 1 << 15, 1)
    ring.take(5000, 5000)
    for at in range(0, len(raw) - CDC_LENGTH + 1, CDC_LENGTH):
        try:
            ring.received(unpackFrom(raw, at))
        except WireError:
            return
        if not (0 <= ring.readable <= ring.size and 0 <= ring.space <= ring.peerSize):
            raise AssertionError(f"{ring.readable} to read, room for {ring.space}")
        ring.consume(ring.readable // 2)
        ring.message()


TARGETS = {
    "CLC": decoder(clc.decode, _clc),
    "LLC": decoder(llc.decode, _messages),
    "CDC": decoder(CDC.decode, _messages),
    "CLC offer": Target(_offered, _clc),
    "CLC handshake": Target(_sniffed, _clc),
    "link group": Target(_group, _messages),
    "ring": Target(_ring, _messages),
}
