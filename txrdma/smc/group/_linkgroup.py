"""
A link group: one link between two ends, the keys of each other's buffers, the connections on it.

Follows RFC 7609, 3.2 (link groups) and 4.5 (LLC). Nothing here reads a clock or a queue pair.

Owners post what C{outgoing()} gives before they act on C{events()}: a group's last message says why it
ended.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from txrdma.error import Refused, ResourceExhausted, WireError
from txrdma.iba.types import RKey
from txrdma.smc.group._linkstate import (
    Core,
    Event,
    GroupEnded,
    GroupKey,
    LinkConfirmed,
    LinkEnd,
    LinkRefused,
    makeLink,
    RemoteRKeysDeleted,
    RKeyConfirmed,
    RKeyRefused,
    RKeysDeleted,
    Role,
    Timing,
)
from txrdma.smc.wire.clc import Diagnosis
from txrdma.smc.wire.llc import (
    AddLink,
    Buffer,
    ConfirmLink,
    ConfirmRKey,
    decode,
    DeleteLink,
    DeleteReason,
    DeleteRKey,
    LLC,
    LLCFlags,
    RejectReason,
    RequestAddLink,
    TestLink,
)

__all__ = [
    "MAX_CONNECTIONS",
    "MAX_RKEYS",
    "Event",
    "GroupEnded",
    "GroupKey",
    "LinkConfirmed",
    "LinkEnd",
    "LinkGroup",
    "LinkRefused",
    "RKeyConfirmed",
    "RKeyRefused",
    "RKeysDeleted",
    "RemoteRKeysDeleted",
    "Role",
    "Timing",
]

MAX_CONNECTIONS = 255
"""Connections in a group, at most (Linux)."""

MAX_RKEYS = 255
"""Buffers of one end in a group, at most (RFC 7609, 3.3)."""

_KEYS_AT_ONCE = 8
"""The most remote keys in one DELETE RKEY (RFC 7609, A.3.8)."""

_TIMING = Timing()


@dataclass(slots=True)
class _Flow:
    """One CONFIRM RKEY or DELETE RKEY of ours; C{address} is None for the latter."""

    rkeys: tuple[RKey, ...]
    address: int | None
    until: float = 0.0


class LinkGroup:
    """
    The LLC flows of one link, and the tables of its group.

    Cores' five: C{received(message, now)}, C{expired(now)}, C{deadline()}, C{outgoing()} (LLC messages to
    SEND), C{events()}.

    @ivar heard: when the link last brought something: its owner sets it, once per batch, for what it does not
        hand to C{received}.
    @ivar isWatched: somebody else tells when the peer's process is gone: no need for TEST LINK.
    @ivar connections: by alert token.
    @ivar promised: connections that have a place, and are not put on the group yet.
    @ivar remote: the peer's end, once it is known.
    @param offersLink: as a server, offer a second link, to be rejected: Linux's version 1 clients wait
        3 seconds for that.
    @param maxConnections: of the group, as version 2.1 has settled it.
    @param window: CONFIRM RKEYs and DELETE RKEYs under way at once; Linux drops a second one.
    """

    def __init__(
        self,
        role: Role,
        local: LinkEnd,
        *,
        timing: Timing = _TIMING,
        version: int = 1,
        maxConnections: int = MAX_CONNECTIONS,
        offersLink: bool = False,
        window: int = 1,
    ) -> None:
        self.role = role
        self.local = local
        self.remote: LinkEnd | None = None
        self.heard = 0.0
        self.isWatched = False
        self.connections: dict[int, object] = {}
        self.promised = 0
        self._core = core = Core(role is Role.SERVER, local, timing, version)
        core.offersLink = offersLink
        core.maxConnections = maxConnections if version > 1 else 0
        self._maxConnections = maxConnections
        self._inputs = makeLink(core)
        self._timing = timing
        self._window = window
        self._token = secrets.randbits(32)
        self._idleSince: float | None = None
        self._retired = False
        self._known: set[RKey] = set()
        self._remote: dict[RKey, int] = {}
        self._waiting: deque[_Flow] = deque()
        self._flows: list[_Flow] = []
        self._testData = b""
        self._testedAt: float | None = None

    # The state

    @property
    def state(self) -> str:
        """The state of the link group: "fresh", "confirming", "active", "ending", "ended"."""
        return self._core.place

    @property
    def isOpen(self) -> bool:
        """Whether the group is active and goes on, with room for more connections or without."""
        return self._core.place == "active" and not self._retired

    @property
    def usable(self) -> bool:
        """Whether a new connection may be put on it. How many there may be is for the server to say."""
        if not self.isOpen:
            return False
        return self.role is Role.CLIENT or len(self.connections) + self.promised < self._maxConnections

    @property
    def linkNumber(self) -> int:
        """The link's, given by the server."""
        return self._core.link

    def outgoing(self) -> list[bytes]:
        """LLC messages to SEND, once."""
        output, self._core.output = self._core.output, []
        return output

    def events(self) -> list[Event]:
        """Take the events since the last call, each of them once."""
        events, self._core.pending = self._core.pending, []
        if self._core.place == "ended" and (self._flows or self._waiting):
            self._abandonFlows()
            events, self._core.pending = self._core.pending + events, []
        return events

    # The link

    def confirm(self, now: float, remote: LinkEnd) -> None:
        """
        First contact. Server: send CONFIRM LINK (the queue pair is in RTS). Client: wait for it (RTR).

        @param remote: the peer's end, from its Accept or Confirm.
        """
        self.remote = remote
        self.heard = now
        if not self.connections:
            self._idleSince = now
        self._inputs.begin(now)

    def shutdown(self, now: float, reason: DeleteReason = DeleteReason.PROGRAM_ENDING) -> None:
        """End the group in order: DELETE LINK; L{GroupEnded} follows."""
        self._inputs.shutdown(now, reason)

    def retire(self, now: float) -> None:
        """The peer does not know the group (Decline, out of sync): take no more, and end with the last."""
        self._retired = True
        if not self.connections:
            self.shutdown(now)

    def linkDown(self, now: float, text: str) -> None:
        """Hear that the link's queue pair failed; the text says how."""
        self._inputs.down(text)

    def fail(self, text: str) -> None:
        """End the group, because something of ours has failed: the peer is told, as far as it can be."""
        if self._core.place in ("active", "ending"):
            self._core.deleteGroup(0, DeleteReason.LOST_PATH)
        self._inputs.down(text)

    # Connections

    def add(self, connection: object, now: float) -> int:
        """
        Put a connection on the group.

        @return: its alert token.
        @raise ResourceExhausted: a server has as many as can be.
        """
        if self.role is Role.SERVER and len(self.connections) >= self._maxConnections:
            raise ResourceExhausted(f"{self._maxConnections} connections in a link group")
        token = self._token
        while not token or token in self.connections:
            token = (token + 1) & 0xFFFFFFFF
        self._token = (token + 1) & 0xFFFFFFFF
        self.connections[token] = connection
        self._idleSince = None
        return token

    def remove(self, token: int, now: float) -> None:
        """The connection is over. Twice is fine."""
        self.connections.pop(token, None)
        if not self.connections and self._idleSince is None:
            self._idleSince = now
            if self._retired:
                self.shutdown(now)

    # Keys of buffers

    def knows(self, rkey: RKey) -> bool:
        """Whether the peer knows this buffer of ours."""
        return rkey in self._known

    def agreed(self, rkey: RKey) -> None:
        """A first contact's Accept or Confirm named this buffer of ours: no need to confirm it."""
        self._known.add(rkey)

    def confirmRKey(self, rkey: RKey, address: int, now: float) -> None:
        """Tell the peer of a buffer of ours: L{RKeyConfirmed} or L{RKeyRefused} follows."""
        self._waiting.append(_Flow((rkey,), address))
        self._nextFlows(now)

    def deleteRKeys(self, rkeys: Sequence[RKey], now: float) -> None:
        """We take buffers back: L{RKeysDeleted} follows, once or more."""
        self._known.difference_update(rkeys)
        for at in range(0, len(rkeys), _KEYS_AT_ONCE):
            self._waiting.append(_Flow(tuple(rkeys[at : at + _KEYS_AT_ONCE]), None))
        self._nextFlows(now)

    def learn(self, rkey: RKey, address: int) -> None:
        """
        A first contact's Accept or Confirm named this buffer of the peer.

        @raise Refused: there are too many.
        """
        if rkey not in self._remote and len(self._remote) >= MAX_RKEYS:
            raise Refused(f"the peer has {MAX_RKEYS} buffers already", Diagnosis.ERR_RTOK)
        self._remote[rkey] = address

    def target(self, rkey: RKey, address: int, size: int, index: int) -> int:
        """
        The place where the peer's element begins, in the peer's address space.

        @param address: of the RMB, as Accept or Confirm names it.
        @param size: of an element.
        @param index: from 1.
        @raise Refused: the peer never told of that buffer; C{status} is L{Diagnosis.ERR_RTOK}.
        """
        if self._remote.get(rkey) != address or index < 1:
            raise Refused(f"the peer never told of buffer {rkey:#x} at {address:#x}", Diagnosis.ERR_RTOK)
        return address + size * (index - 1)

    # Time

    def deadline(self) -> float | None:
        """The time of the next call of C{expired}, if nothing happens before; earlier is fine."""
        core = self._core
        if core.place == "ended":
            return None
        times = [core.until, *(flow.until for flow in self._flows), self._testTime(), self._idleTime()]
        return min((each for each in times if each is not None), default=None)

    def expired(self, now: float) -> None:
        """End flows and waits whose deadline is over, test a silent link, shut an idle group down."""
        core = self._core
        if core.until is not None and core.until <= now:
            self._inputs.expired()
        for flow in [flow for flow in self._flows if flow.until <= now]:
            self._flowEnded(flow, False, now)
        test = self._testTime()
        if test is not None and test <= now:
            self._test(now)
        idle = self._idleTime()
        if idle is not None and idle <= now:
            self.shutdown(now)

    def _testTime(self) -> float | None:
        if self._core.place != "active" or not self._timing.testIdle or self.isWatched:
            return None
        timing = self._timing
        if self._testedAt is not None and self.heard <= self._testedAt:
            return min(self._testedAt + timing.testInterval, self.heard + timing.silence)
        return self.heard + timing.testIdle

    def _test(self, now: float) -> None:
        if now >= self.heard + self._timing.silence:
            self._inputs.down("the peer has answered no TEST LINK for too long")
            return
        self._testedAt = now
        self._testData = secrets.token_bytes(16)
        self._core.ask(TestLink(userData=self._testData))

    def _idleTime(self) -> float | None:
        if self._idleSince is None or self._core.place != "active":
            return None
        server = self.role is Role.SERVER
        return self._idleSince + (self._timing.serverIdle if server else self._timing.clientIdle)

    # Our requests about keys

    def _nextFlows(self, now: float) -> None:
        core = self._core
        while self._waiting and len(self._flows) < self._window and core.place == "active":
            flow = self._waiting.popleft()
            flow.until = now + self._timing.response
            self._flows.append(flow)
            if flow.address is not None:
                core.ask(ConfirmRKey(rkey=flow.rkeys[0], address=flow.address))
            else:
                keys = flow.rkeys + (RKey(0),) * (_KEYS_AT_ONCE - len(flow.rkeys))
                core.ask(DeleteRKey(count=len(flow.rkeys), rkeys=keys))

    def _flowEnded(self, flow: _Flow, well: bool, now: float) -> None:
        self._flows.remove(flow)
        self._report(flow, well)
        self._nextFlows(now)

    def _report(self, flow: _Flow, well: bool) -> None:
        if flow.address is None:
            self._core.pending.append(RKeysDeleted(flow.rkeys))
        elif well:
            self._known.add(flow.rkeys[0])
            self._core.pending.append(RKeyConfirmed(flow.rkeys[0]))
        else:
            self._core.pending.append(RKeyRefused(flow.rkeys[0]))

    def _abandonFlows(self) -> None:
        for flow in (*self._flows, *self._waiting):
            self._report(flow, False)
        self._flows.clear()
        self._waiting.clear()

    # What the peer sends

    def received(self, raw: Buffer, now: float) -> None:
        """The link brought an LLC message."""
        self.heard = now
        if self._core.place == "ended":
            return
        try:
            one = decode(raw)
            if one.header.version == 2:
                self._core.bigEndian = one.header.bigEndian
            self._dispatch(one, now)
        except WireError as error:
            self._inputs.violated(str(error))

    def _dispatch(self, one: LLC, now: float) -> None:
        body = one.body
        if isinstance(body, ConfirmLink):
            self._confirmLink(one, body, now)
        elif isinstance(body, TestLink):
            if not one.isResponse:
                self._core.reply(one)
            elif body.userData == self._testData:
                self._testedAt = None
        elif isinstance(body, ConfirmRKey):
            self._confirmRKey(one, body, now)
        elif isinstance(body, DeleteRKey):
            self._deleteRKey(one, body, now)
        elif isinstance(body, DeleteLink):
            self._deleteLink(one, body, now)
        elif isinstance(body, (AddLink, RequestAddLink)):
            if not one.isResponse:
                self._core.reply(one, LLCFlags.REJECT, RejectReason.NO_ALTERNATE_PATH)
        elif body is None:
            raise WireError("LLC", 0, f"no such message: {one.type}")
        # CONTINUATIONs are about links that we do not have.

    def _confirmLink(self, one: LLC, body: ConfirmLink, now: float) -> None:
        if one.isResponse != (self.role is Role.SERVER):
            if not one.isResponse:
                raise WireError("CONFIRM LINK", 3, "a client does not ask for that")
            return
        core = self._core
        if core.place != "confirming":
            self._inputs.confirmed(now)
        elif one.header.flags & LLCFlags.NO_EYECATCHER != LLCFlags.NO_EYECATCHER:
            self._inputs.refused(Diagnosis.RMBE_EC)
        elif LinkEnd(body.mac, body.gid, body.qpn) != self.remote:
            self._inputs.refused(Diagnosis.NOSRVLINK)
        elif one.isResponse and body.link != core.link:
            self._inputs.refused(Diagnosis.NOSRVLINK)
        else:
            core.link = body.link
            self._inputs.confirmed(now)
            self._nextFlows(now)

    def _confirmRKey(self, one: LLC, body: ConfirmRKey, now: float) -> None:
        if one.isResponse:
            for flow in self._flows:
                if flow.address is not None and flow.rkeys[0] == body.rkey:
                    self._flowEnded(flow, not one.header.flags & LLCFlags.NEGATIVE, now)
                    return
            return  # it took too long
        try:
            self.learn(body.rkey, body.address)
        except Refused:
            self._core.reply(one, LLCFlags.NEGATIVE)
        else:
            self._core.reply(one)

    def _deleteRKey(self, one: LLC, body: DeleteRKey, now: float) -> None:
        if one.isResponse:  # they come in order; Linux's do not say which keys they are about
            for flow in self._flows:
                if flow.address is None:
                    self._flowEnded(flow, True, now)
                    return
            return
        keys = one.deletedRKeys
        unknown = 0
        for place, rkey in enumerate(keys):
            if self._remote.pop(rkey, None) is None and place < _KEYS_AT_ONCE:
                unknown |= 0x80 >> place
        negative = LLCFlags.NEGATIVE if unknown else 0
        self._core.reply(one, negative, body=body.replace(errorMask=unknown))
        self._core.pending.append(RemoteRKeysDeleted(keys))

    def _deleteLink(self, one: LLC, body: DeleteLink, now: float) -> None:
        if one.isResponse:
            self._inputs.linkDeleted()
        elif one.header.flags & LLCFlags.ALL_LINKS or body.link == self._core.link:
            self._inputs.deleteLink(one, now)
            if self.role is Role.CLIENT:
                self._inputs.linkDeleted()  # we have said yes, and that is all
        else:
            self._core.reply(one, body=body.replace(reason=DeleteReason.LINK_UNKNOWN))
