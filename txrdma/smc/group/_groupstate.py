"""
The data of a link group, and its state machine: CONFIRM LINK, DELETE LINK, and their timeouts.

Follows RFC 7609, 4.5.1 to 4.5.4; timeouts are Linux's. L{txrdma.smc.group._linkgroup} provides the inputs.

Theory of operation. A group is "fresh" until its queue pair is ready, then "confirming": the server sends
CONFIRM LINK, and the client answers. The group becomes "active" for the end that receives a valid one. An
invalid one, a failure, or none in time is the event L{LinkRefused}, and the handshake declines. A group is
"ending" from its first DELETE LINK until the response or a deadline. A client only requests the deletion: the
server answers by its own DELETE LINK. If both requests cross, the client answers the server's. Violations of
the protocol and the failure of the last queue pair end the group at once. "ended" is final: later inputs have
no effect.

L{LinkGroupCore} is what the state machine and the exchanges share: links, messages to send (C{output}) and
events for the owner (C{pending}). Each link has a L{LinkLife}.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import field
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, Union

from txrdma.iba.types import GID, MACAddress, QPN, RKey
from txrdma.kit.machines import machineBuilder
from txrdma.kit.values import frozen, record
from txrdma.smc.terms.offer import Choice, Role
from txrdma.smc.wire.clc import Accept, Diagnosis, Proposal
from txrdma.smc.wire.llc import (
    AddLink,
    AddLinkExtension,
    AddLinkReason,
    Body,
    ConfirmLink,
    DeleteLink,
    DeleteReason,
    LLC,
    LLCFlags,
    LLCHeader,
    message,
)


@frozen
class Timing:
    """
    The timeouts of a link group, in seconds.

    @ivar response: for the response to a request.
    @ivar confirmRKey: for the response to CONFIRM RKEY, from a peer that has answered the last one. A CLC
        handshake waits for it: of its six seconds, one is left for Accept or Confirm. Linux waits 2 s, but
        one reactor iteration may take that long on a busy machine.
    @ivar confirmLink: as a client, for the server's CONFIRM LINK on the first link.
    @ivar newLink: for the response to it, and for both on an additional link. The client may already use the
        first link when this has passed, so its connection is lost: Linux waits 2 s, but see C{confirmRKey}.
    @ivar testIdle: seconds of silence after which TEST LINK is sent; 0: never.
    @ivar testInterval: interval of TEST LINK while the peer does not answer.
    @ivar testSeveral: upper limit of C{testIdle} and C{testInterval} if the group has other links: if data
        arrives on one of them while this link does not answer, the link has failed, but the peer is alive.
    @ivar silence: a peer that has not answered for this time is considered lost. Programs may be busy for a
        long time, so this is when TCP keepalive gives up by Linux's defaults (7200 s, then 9 probes at 75 s).
    @ivar serverIdle: lifetime of a group without connections; C{clientIdle} is longer, so that the server
        ends it.
    """

    response: float = 2.0
    confirmRKey: float = 5.0
    confirmLink: float = 4.0
    newLink: float = 5.0
    testIdle: float = 30.0
    testInterval: float = 75.0
    testSeveral: float = 5.0
    silence: float = 7875.0
    serverIdle: float = 600.0
    clientIdle: float = 610.0


class GroupKey(NamedTuple):
    """
    The properties that connections of one link group have in common.

    The peer's properties are its own claims, so they identify it only together with the identityKey.

    @ivar identityKey: identity of the peer as reported by the kernel: its process, user, or TCP address.
    @ivar localGID: the local GID.
    @ivar eid: on a server, the enterprise ID that it has chosen; empty on clients, which rely on the server.
    @ivar qpn: on a client, number of the peer's queue pair.
    """

    role: Role
    identityKey: Hashable
    peerID: bytes
    gid: GID
    mac: MACAddress
    localGID: GID
    version: int
    eid: bytes = b""
    qpn: QPN | None = None

    @property
    def peer(self) -> tuple[Role, Hashable, bytes]:
        """The part of the key that is the same for all links of a group."""
        return self.role, self.identityKey, self.peerID

    @classmethod
    def ofProposal(cls, proposal: Proposal, choice: Choice, identityKey: Hashable) -> GroupKey:
        """Create the server's key of the group for the client of this Proposal."""
        agreement, localGID = choice.agreement, choice.candidate.gid
        version, eid = agreement.version, agreement.eid
        return cls(
            Role.SERVER, identityKey, proposal.peerID, choice.gid, proposal.mac, localGID, version, eid
        )

    @classmethod
    def ofAccept(cls, accept: Accept, localGID: GID, identityKey: Hashable) -> GroupKey:
        """Create the client's key of the group for the server of this Accept."""
        version, qpn = accept.version, accept.qpn
        return cls(
            Role.CLIENT, identityKey, accept.peerID, accept.gid, accept.mac, localGID, version, qpn=qpn
        )


class LinkEnd(NamedTuple):
    """The address of one end of a link, as contained in CLC messages and CONFIRM LINK."""

    mac: MACAddress
    gid: GID
    qpn: QPN


class Token(NamedTuple):
    """The key and the address of a buffer on one link."""

    rkey: RKey
    address: int


@record(eq=False)
class LinkLife:
    """
    The LLC state of a link of a group.

    @ivar number: number of the link, assigned by the server.
    @ivar state: state of the link: C{"fresh"}, C{"confirming"}, C{"active"}, C{"gone"}.
    @ivar localTokens: local buffers on this link, by a name common to all links: the key on the first link
        where it was registered.
    @ivar remoteKeys: the peer's buffers, by their keys on this link; links share each buffer's dictionary.
    @ivar lastReceivedAt: time of the last data from the peer on this link; its owner sets it, once per batch,
        for data that it does not pass to C{received}.
    @ivar testedAt: time of an unanswered TEST LINK, or None; C{isCompared}: other links are still to be
        checked for later data.
    """

    local: LinkEnd
    number: int
    remote: LinkEnd | None = None
    state: str = "fresh"
    localTokens: dict[RKey, Token] = field(default_factory=dict)
    remoteKeys: dict[RKey, dict[LinkLife, Token]] = field(default_factory=dict)
    lastReceivedAt: float = 0.0
    testData: bytes = b""
    testedAt: float | None = None
    isCompared: bool = False

    def isSymmetricTo(self, other: LinkLife) -> bool:
        """Return whether two links share no port, at either end (RFC 7609, 2.2)."""
        assert self.remote is not None and other.remote is not None, "a link without its other end"
        return self.local[:2] != other.local[:2] and self.remote[:2] != other.remote[:2]


@frozen
class LinkRequested:
    """A link should be added: call C{offer} or C{decline}. C{peerEnd}: on a client, the server's end."""

    peerEnd: AddLink | None


@frozen
class LinkMade:
    """Both ends of a new link are known: the owner connects its queue pair, then calls C{made}."""

    link: LinkLife
    peerEnd: AddLink


@frozen
class LinkAdded:
    """An additional link is confirmed: connections may use it."""

    link: LinkLife


@frozen
class LinkLost:
    """A link has ended while others are active: its connections move there, and its queue pair is closed."""

    link: LinkLife
    text: str


@frozen
class LinkConfirmed:
    """CONFIRM LINK has succeeded: connections may use the link."""


@frozen
class LinkRefused:
    """CONFIRM LINK has failed, and the group has ended: decline with this diagnosis."""

    diagnosis: Diagnosis


@frozen
class RKeyConfirmed:
    """The peer knows the local buffer: Accept or Confirm may name it now."""

    rkey: RKey


@frozen
class RKeyRefused:
    """The peer refused the key of the local buffer, or did not answer."""

    rkey: RKey


@frozen
class RKeysDeleted:
    """The peer has deleted the keys of these local buffers, or did not answer: they may be freed."""

    rkeys: tuple[RKey, ...]


@frozen
class RemoteRKeysDeleted:
    """The peer has withdrawn these buffers, by their keys on C{link}: do not write to them any more."""

    rkeys: tuple[RKey, ...]
    link: LinkLife | None = field(default=None, compare=False)


@frozen
class RuleBroken:
    """The peer violated the protocol; the end of the group follows."""

    text: str


@frozen
class GroupEnded:
    """The group and its connections have ended; C{isByPeer}: the peer ended it, after sending everything."""

    reason: DeleteReason
    text: str
    isByPeer: bool = False


Event = Union[
    LinkConfirmed,
    LinkRefused,
    LinkRequested,
    LinkMade,
    LinkAdded,
    LinkLost,
    RKeyConfirmed,
    RKeyRefused,
    RKeysDeleted,
    RemoteRKeysDeleted,
    RuleBroken,
    GroupEnded,
]


class GroupInputs(Protocol):
    """The inputs of a group's state machine (RFC 7609, 4.5)."""

    def begin(self, now: float) -> None:
        """The queue pair is ready."""

    def confirmed(self, now: float) -> None:
        """The peer sent a valid CONFIRM LINK: a request to a client, a response to a server."""

    def refused(self, diagnosis: Diagnosis) -> None:
        """The peer sent an invalid CONFIRM LINK."""

    def shutdown(self, now: float, reason: DeleteReason) -> None:
        """The local end ends the group."""

    def deleteLink(self, request: LLC, now: float) -> None:
        """The peer requests to delete the link, by this DELETE LINK (RFC 7609, A.3.4)."""

    def linkDeleted(self) -> None:
        """The peer has answered the local DELETE LINK."""

    def violated(self, text: str) -> None:
        """The peer violated the protocol."""

    def down(self, text: str) -> None:
        """The queue pair has failed."""

    def expired(self) -> None:
        """The expected answer did not arrive in time."""


class LinkGroupCore:
    """
    The data of a group that the state machine and the exchanges act on.

    @ivar links: current links; the first one is of the first contact.
    @ivar arriving: the link that received the current message.
    @ivar known: local buffers that the peer knows.
    @ivar maxLinks: local limit of links; C{peerLinks}: the peer's.
    @ivar window: limit of pending requests about buffers.
    """

    def __init__(self, isServer: bool, local: LinkEnd, timing: Timing, version: int) -> None:
        self.isServer = isServer
        self.local = local
        self.timing = timing
        self.version = version
        self.bigEndian = False
        self.links = [LinkLife(local, 1 if isServer else 0)]  # the server assigns the numbers
        self.arriving = self.links[0]
        self.known: set[RKey] = set()
        self.maxLinks = self.peerLinks = 1
        self.maxConnections = 0
        self.offersLink = False
        self.window = 1
        self.until: float | None = None
        self.output: list[tuple[LinkLife, bytes]] = []
        self.pending: list[Event] = []
        self.state = "fresh"
        self.ending = GroupEnded(DeleteReason.NONE, "")

    @property
    def active(self) -> list[LinkLife]:
        """The links that connections may use."""
        return [link for link in self.links if link.state == "active"]

    @property
    def carrier(self) -> LinkLife:
        """The link for messages about the group."""
        return next((link for link in self.links if link.state == "active"), self.links[0])

    def sendRequest(
        self,
        body: Body,
        flags: int = 0,
        link: LinkLife | None = None,
        extension: AddLinkExtension | None = None,
    ) -> None:
        """Send a request on a link; None: on C{carrier}."""
        header = LLCHeader(LLCFlags(flags), self.version, AddLinkReason.NONE, self.bigEndian)
        raw = LLC(body.TYPE, header, body, extension).encode()
        self.output.append((self.carrier if link is None else link, raw))

    def reply(
        self,
        request: LLC,
        flags: int = 0,
        reject: AddLinkReason = AddLinkReason.NONE,
        body: Body | None = None,
    ) -> None:
        """Send a request back as a response, optionally with another body."""
        body = body if body is not None else request.body
        assert body is not None, "an unknown type has no response"
        asked = request.header
        reason = reject if asked.version == 1 else AddLinkReason.NONE  # version 2 has no field for it
        header = LLCHeader(asked.flags | flags | LLCFlags.RESPONSE, asked.version, reason, asked.bigEndian)
        self.output.append((self.arriving, message(body, header).encode()))

    def confirmLink(self, flags: int, link: LinkLife) -> None:
        body = ConfirmLink(
            mac=link.local.mac,
            gid=link.local.gid,
            qpn=link.local.qpn,
            link=link.number,
            userID=link.number.to_bytes(4, "big"),
            maxLinks=self.maxLinks,
            maxConnections=self.maxConnections,
        )
        self.sendRequest(body, flags | LLCFlags.NO_EYECATCHER, link)

    def deleteGroup(self, flags: int, reason: DeleteReason) -> None:
        self.sendRequest(DeleteLink(link=0, reason=reason), flags | LLCFlags.ALL_LINKS)

    def offerLink(self) -> None:
        """Offer an unusable second link: Linux's client waits for an ADD LINK, and rejects this one."""
        self.sendRequest(AddLink(mac=self.local.mac, gid=self.local.gid, link=self.links[0].number + 1))

    def finish(self) -> None:
        self.until = None
        self.pending.append(self.ending)


@lru_cache(1)
def _machine() -> Callable[[LinkGroupCore], GroupInputs]:
    """Declare the states of a group; C{core.state} has the name of the current one, for the exchanges."""
    builder = machineBuilder(GroupInputs, LinkGroupCore)
    names = ("fresh", "confirming", "active", "ending", "ended")
    fresh, confirming, active, ending, ended = (builder.state(name) for name in names)

    @fresh.upon(GroupInputs.begin).to(confirming)
    def begin(inputs: GroupInputs, core: LinkGroupCore, now: float) -> None:
        core.state = "confirming"
        core.until = now + (core.timing.newLink if core.isServer else core.timing.confirmLink)
        if core.isServer:
            core.confirmLink(0, core.links[0])

    @confirming.upon(GroupInputs.confirmed).to(active)
    def confirmed(inputs: GroupInputs, core: LinkGroupCore, now: float) -> None:
        core.state = core.links[0].state = "active"
        core.until = None
        core.pending.append(LinkConfirmed())
        if not core.isServer:
            core.confirmLink(LLCFlags.RESPONSE, core.links[0])
        elif core.offersLink:
            core.offerLink()

    @active.upon(GroupInputs.confirmed).loop()
    def confirmedAgain(inputs: GroupInputs, core: LinkGroupCore, now: float) -> None:
        if not core.isServer:
            core.confirmLink(LLCFlags.RESPONSE, core.links[0])

    confirming.upon(GroupInputs.refused).to(ended)(_refuse)

    @confirming.upon(GroupInputs.expired).to(ended)
    def unconfirmed(inputs: GroupInputs, core: LinkGroupCore) -> None:
        _refuse(inputs, core, Diagnosis.TIMEOUT_CL)

    @active.upon(GroupInputs.shutdown).to(ending)
    def shutdown(inputs: GroupInputs, core: LinkGroupCore, now: float, reason: DeleteReason) -> None:
        core.state = "ending"
        core.until = now + core.timing.response
        core.ending = GroupEnded(reason, "ended by this process")
        core.deleteGroup(LLCFlags.ORDERLY, reason)

    @active.upon(GroupInputs.deleteLink).to(ending)
    def deletionRequested(inputs: GroupInputs, core: LinkGroupCore, request: LLC, now: float) -> None:
        core.state = "ending"
        core.until = now + core.timing.response
        core.ending = GroupEnded(_reason(request), "ended by the peer", True)
        if core.isServer:  # a client only requests the deletion, which the server performs
            core.deleteGroup(request.header.flags & LLCFlags.ORDERLY, _reason(request))
        else:
            core.reply(request)

    @ending.upon(GroupInputs.deleteLink).loop()
    def deletionsCrossed(inputs: GroupInputs, core: LinkGroupCore, request: LLC, now: float) -> None:
        if not core.isServer:  # the server's request takes precedence
            core.reply(request)

    @ending.upon(GroupInputs.linkDeleted).to(ended)
    @ending.upon(GroupInputs.expired).to(ended)
    def deleted(inputs: GroupInputs, core: LinkGroupCore) -> None:
        core.state = "ended"
        core.finish()

    @fresh.upon(GroupInputs.shutdown).to(ended)
    @confirming.upon(GroupInputs.shutdown).to(ended)
    def shutdownEarly(inputs: GroupInputs, core: LinkGroupCore, now: float, reason: DeleteReason) -> None:
        core.state = "ended"
        core.ending = GroupEnded(reason, "ended by this process")
        core.finish()

    _declareFailures((fresh, confirming, active, ending, ended))
    return builder.build()


def _refuse(inputs: GroupInputs, core: LinkGroupCore, diagnosis: Diagnosis) -> None:
    """End a group whose first contact has failed."""
    core.state = "ended"
    core.until = None
    core.pending.append(LinkRefused(diagnosis))


def _declareFailures(states: tuple[Any, ...]) -> None:
    """Declare violations, failures of the queue pair, and the inputs that have no effect in a state."""
    fresh, confirming, active, ending, ended = states

    def violated(inputs: GroupInputs, core: LinkGroupCore, text: str) -> None:
        core.pending.append(RuleBroken(text))
        core.state = "ended"
        core.ending = GroupEnded(DeleteReason.PROTOCOL_VIOLATION, text)
        core.deleteGroup(0, DeleteReason.PROTOCOL_VIOLATION)
        core.finish()

    def down(inputs: GroupInputs, core: LinkGroupCore, text: str) -> None:
        core.state = "ended"
        core.ending = GroupEnded(DeleteReason.LOST_PATH, text)
        core.finish()

    def deletedEarly(inputs: GroupInputs, core: LinkGroupCore, request: LLC, now: float) -> None:
        _refuse(inputs, core, Diagnosis.NOACTLINK)

    def violatedEarly(inputs: GroupInputs, core: LinkGroupCore, text: str) -> None:
        core.pending.append(RuleBroken(text))
        _refuse(inputs, core, Diagnosis.NOACTLINK)

    def downEarly(inputs: GroupInputs, core: LinkGroupCore, text: str) -> None:
        _refuse(inputs, core, Diagnosis.NOACTLINK)

    confirming.upon(GroupInputs.deleteLink).to(ended)(deletedEarly)
    confirming.upon(GroupInputs.violated).to(ended)(violatedEarly)
    confirming.upon(GroupInputs.down).to(ended)(downEarly)
    for state in (fresh, active, ending):
        state.upon(GroupInputs.violated).to(ended)(violated)
        state.upon(GroupInputs.down).to(ended)(down)
    everything = [getattr(GroupInputs, name) for name in vars(GroupInputs) if not name.startswith("_")]
    ignored = {
        fresh: (
            GroupInputs.confirmed,
            GroupInputs.refused,
            GroupInputs.deleteLink,
            GroupInputs.linkDeleted,
            GroupInputs.expired,
        ),
        confirming: (GroupInputs.linkDeleted,),
        active: (GroupInputs.refused, GroupInputs.linkDeleted, GroupInputs.expired),
        ending: (GroupInputs.confirmed, GroupInputs.refused, GroupInputs.shutdown),
        ended: everything,
    }
    for state, inputs in ignored.items():
        for each in inputs:
            state.upon(each).loop().returns(None)


def _reason(request: LLC) -> DeleteReason:
    assert isinstance(request.body, DeleteLink)
    return request.body.reason


def groupMachine(core: LinkGroupCore) -> GroupInputs:
    """Create the state machine of a new group, in its initial state."""
    return _machine()(core)
