"""
The protocol of a link group (LLC): its links, the keys of both ends' buffers, and tests of silent links.

Follows RFC 7609, 3.2 (link groups) and 4.5 (LLC). This module does no I/O and reads no clock.

Theory of operation. L{txrdma.smc.group._groupstate} has the state of the group: "fresh", "confirming" (the
first contact), "active", "ending" (DELETE LINK was sent or received), "ended". Connections join while it is
active, and each has an alert token, by which CDC messages find it. A buffer has one key per link: local
buffers are named by one key and have a token on each link; a remote buffer is one dictionary of tokens, found
by any of its keys.

The exchanges run in L{txrdma.smc.group._linkexchanges} (one at a time) and
L{txrdma.smc.group._keyexchanges} (as many as the peer accepts). If a link fails, requests about buffers are
repeated on another one; without another link the group ends. A silent link is tested by TEST LINK on all
links: if data arrives on another link and no response on this one, this link is lost; if all are silent, the
peer may be busy, and gets as much time as TCP would give it.

Owners post the messages of C{outgoing()} before they act on C{events()}, since the last message of a group
reports why it ended.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from txrdma.error import Refused, ResourceExhausted, WireError
from txrdma.iba.types import RKey
from txrdma.kit.values import replace
from txrdma.smc.group._groupstate import (
    Event,
    groupMachine,
    LinkEnd,
    LinkGroupCore,
    LinkLife,
    RemoteRKeysDeleted,
    Timing,
    Token,
)
from txrdma.smc.group._keyexchanges import KeyExchanges, KEYS_AT_ONCE
from txrdma.smc.group._linkexchanges import LinkExchanges
from txrdma.smc.terms.offer import MOST_CONNECTIONS, Role
from txrdma.smc.wire.clc import Diagnosis
from txrdma.smc.wire.llc import (
    AddLink,
    AddLinkContinuation,
    AddLinkReason,
    Buffer,
    ConfirmLink,
    ConfirmRKey,
    ConfirmRKeyContinuation,
    decode,
    DeleteLink,
    DeleteReason,
    DeleteRKey,
    LinkRKey,
    LLC,
    LLCFlags,
    RequestAddLink,
    TestLink,
)

MAX_RKEYS = 255
"""Largest number of buffers of one end in a group (RFC 7609, 3.3)."""

_TIMING = Timing()


class LinkGroupProtocol:
    """
    The LLC exchanges of a group, and its tables.

    Like every core, it has C{received(message, now, link)}, C{expired(now)}, C{deadline()}, C{outgoing()}
    (LLC messages to SEND, each with its link) and C{events()}.

    @ivar first: the link of the first contact, whose local end is known from the beginning.
    @ivar isWatched: the end of the peer's process is detected by other means: no TEST LINK is sent.
    @ivar connections: connections by alert token.
    @ivar promised: number of reserved connections that are not added yet.
    @param offersLink: as a server, offer a second link, which the client will reject: Linux's clients
        of versions 1 and 2.0 wait 3 seconds for an offer.
    @param maxConnections: limit of connections, as negotiated by version 2.1.
    @param maxLinks: local limit of links, up to 8; if it is more than one, L{LinkRequested} may occur.
    @param window: limit of pending CONFIRM RKEYs and DELETE RKEYs; Linux drops a second one.
    """

    def __init__(
        self,
        role: Role,
        local: LinkEnd,
        *,
        timing: Timing = _TIMING,
        version: int = 1,
        maxConnections: int = MOST_CONNECTIONS,
        offersLink: bool = False,
        maxLinks: int = 1,
        window: int = 1,
    ) -> None:
        self.role = role
        self.local = local
        self.isWatched = False
        self.connections: dict[int, object] = {}
        self.promised = 0
        self._core = core = LinkGroupCore(role is Role.SERVER, local, timing, version)
        core.offersLink, core.window = offersLink, window
        core.maxLinks = maxLinks
        self.first = core.links[0]
        self._linkExchanges = LinkExchanges(core)
        self._keyExchanges = KeyExchanges(core, self._linkExchanges)
        core.maxConnections = maxConnections if version > 1 else 0
        self._maxConnections = maxConnections
        self._inputs = groupMachine(core)
        self._timing = timing
        self._token = secrets.randbits(32)
        self._idleSince: float | None = None
        self._retired = False
        self._known = core.known
        # The peer's CONFIRM RKEY whose continuations are missing, its link, and the keys that have arrived.
        self._partial: tuple[LLC, LinkLife, dict[LinkLife, Token]] | None = None

    # The state

    @property
    def state(self) -> str:
        """The state of the link group: "fresh", "confirming", "active", "ending", "ended"."""
        return self._core.state

    @property
    def isOpen(self) -> bool:
        """Whether the group is active and not retired; it may be full."""
        return self._core.state == "active" and not self._retired

    @property
    def usable(self) -> bool:
        """Whether a new connection may join. The server enforces the limit of connections."""
        if not self.isOpen:
            return False
        return self.role is Role.CLIENT or len(self.connections) + self.promised < self._maxConnections

    @property
    def links(self) -> list[LinkLife]:
        """The links that connections may use."""
        return self._core.active

    def outgoing(self) -> list[tuple[LinkLife, bytes]]:
        """Take the LLC messages to SEND, each with its link."""
        output, self._core.output = self._core.output, []
        return output

    def events(self) -> list[Event]:
        events, self._core.pending = self._core.pending, []
        if self._core.state == "ended":
            # Pending requests fail before the end of the group is reported.
            self._keyExchanges.abandon()
            events, self._core.pending = self._core.pending + events, []
        return events

    # The link

    def confirm(self, now: float, remote: LinkEnd) -> None:
        """Begin the first contact: a server sends CONFIRM LINK (in RTS), a client waits for it (in RTR)."""
        self.first.remote = remote
        self.first.lastReceivedAt = now
        if not self.connections:
            self._idleSince = now
        self._inputs.begin(now)

    def keepAlive(self, seconds: float) -> None:
        """Set the seconds of silence after which TEST LINK is sent."""
        self._timing = replace(self._timing, testIdle=seconds)

    def shutdown(self, now: float, reason: DeleteReason = DeleteReason.PROGRAM_ENDING) -> None:
        """End the group in order: DELETE LINK; L{GroupEnded} follows."""
        self._inputs.shutdown(now, reason)

    def retire(self, now: float) -> None:
        """Accept no more connections, because the peer does not know the group; end it with the last one."""
        self._retired = True
        if not (self.connections or self.links[1:]):  # it could overtake messages on other links
            self.shutdown(now)

    def linkDown(self, now: float, text: str, link: LinkLife | None = None) -> None:
        """Handle the failure of a link's queue pair: L{LinkLost} follows, or L{GroupEnded} without others."""
        link = self.first if link is None else link
        core = self._core
        if link.state == "gone":
            return
        if core.state not in ("active", "ending") or not any(each is not link for each in core.active):
            self._inputs.down(text)
            return
        self._linkExchanges.lost(link, text, now)
        self._keyExchanges.lostBy(link, now)

    # Further links

    def grow(self, port: LinkEnd | None, now: float) -> None:
        """Add or, as a client, repeatedly request a link; C{port} is a usable local port without a link."""
        if self.role is Role.CLIENT:
            self._linkExchanges.request(port, now)
        elif port is not None:
            self._linkExchanges.renew()

    def shareMemory(self) -> None:
        """Adapt to shared memory before C{confirm}: one link, a watched peer, no limit of requests."""
        self.isWatched, self._core.maxLinks, self._core.window = True, 1, MAX_RKEYS

    def offer(
        self,
        local: LinkEnd,
        mtu: int,
        psn: int,
        tokens: Mapping[RKey, Token],
        now: float,
        isDirect: bool = True,
    ) -> LinkLife | None:
        return self._linkExchanges.offer(local, mtu, psn, tokens, now, isDirect)

    def decline(self, now: float) -> None:
        self._linkExchanges.decline(now)
        self._keyExchanges.sendQueued(now)

    def made(self, link: LinkLife, now: float) -> None:
        self._linkExchanges.made(link, now)

    def elsewhere(self, link: LinkLife, other: LinkLife, rkey: RKey) -> tuple[Token, Token] | None:
        """Return the tokens of the peer's buffer on both links, by its key on C{link}; None if unknown."""
        buffer = link.remoteKeys.get(rkey, {})
        return (buffer[link], buffer[other]) if link in buffer and other in buffer else None

    def fail(self, text: str) -> None:
        """End the group because of a local failure, and notify the peer if possible."""
        if self._core.state in ("active", "ending"):
            self._core.deleteGroup(0, DeleteReason.LOST_PATH)
        self._inputs.down(text)

    # Connections

    def add(self, connection: object) -> int:
        """Add a connection, and return its alert token; raises L{ResourceExhausted}."""
        if self.role is Role.SERVER and len(self.connections) >= self._maxConnections:
            raise ResourceExhausted(f"{self._maxConnections} connections in a link group")
        # Tokens are not reused at once, since late messages of an ended connection still have its token.
        token = self._token
        while not token or token in self.connections:
            token = (token + 1) & 0xFFFFFFFF
        self._token = (token + 1) & 0xFFFFFFFF
        self.connections[token] = connection
        self._idleSince = None
        return token

    def remove(self, token: int, now: float) -> None:
        """Remove a connection. Idempotent."""
        self.connections.pop(token, None)
        if not self.connections and self._idleSince is None:
            self._idleSince = now
            if self._retired and not self.links[1:]:
                self.shutdown(now)

    # Keys of buffers

    def knows(self, rkey: RKey) -> bool:
        """Return whether the peer knows this local buffer."""
        return rkey in self._known

    def agreed(self, rkey: RKey, address: int = 0) -> None:
        """Record a local buffer that the answer of the first contact contains: it needs no CONFIRM RKEY."""
        self.first.localTokens[rkey] = Token(rkey, address)
        self._known.add(rkey)

    def registered(self, name: RKey, tokens: Mapping[LinkLife, Token]) -> None:
        """Record keys and addresses of a local buffer on links; C{name} is passed to C{confirmRKey}."""
        for link, token in tokens.items():
            link.localTokens[name] = token

    def confirmRKey(self, rkey: RKey, address: int, now: float) -> None:
        """
        Announce a local buffer on all links: L{RKeyConfirmed} or L{RKeyRefused} follows.

        @param rkey: the buffer's name: its key on the first link, or the one given to C{registered}.
        """
        self.first.localTokens.setdefault(rkey, Token(rkey, address))
        self._keyExchanges.confirm(rkey, now)

    def deleteRKeys(self, rkeys: Sequence[RKey], now: float) -> None:
        """Withdraw local buffers: L{RKeysDeleted} follows, once or more."""
        self._keyExchanges.delete(rkeys, now)

    def learn(self, rkey: RKey, address: int) -> None:
        """Record the peer's buffer that the answer of the first contact contains; raises L{Refused}."""
        self._learn({self.first: Token(rkey, address)})

    def _learn(self, tokens: dict[LinkLife, Token]) -> None:
        """Record keys of a peer's buffer, new or known; raises L{Refused} if there are too many buffers."""
        known = (
            link.remoteKeys[token.rkey] for link, token in tokens.items() if token.rkey in link.remoteKeys
        )
        buffer = next(known, {})
        if any(
            len(link.remoteKeys) >= MAX_RKEYS and token.rkey not in link.remoteKeys
            for link, token in tokens.items()
        ):
            raise Refused(f"the peer has {MAX_RKEYS} buffers already", Diagnosis.ERR_RTOK)
        for link, token in tokens.items():
            buffer[link] = token
            link.remoteKeys[token.rkey] = buffer

    def target(self, rkey: RKey, address: int, size: int, index: int, link: LinkLife | None = None) -> int:
        """
        Return the address of the peer's element, in the peer's address space.

        @param address: address of the RMB in Accept or Confirm.
        @param size: size of an element, in bytes.
        @param index: number of the element, from 1.
        @param link: link on which the buffer has that key; None: the first one.
        @raise Refused: the peer has not announced that buffer; C{status} is L{Diagnosis.ERR_RTOK}.
        """
        link = self.first if link is None else link
        token = link.remoteKeys.get(rkey, {}).get(link)
        if token is None or token.address != address or index < 1:
            raise Refused(f"the peer has not announced buffer {rkey:#x} at {address:#x}", Diagnosis.ERR_RTOK)
        return address + size * (index - 1)

    # Time

    def deadline(self) -> float | None:
        """Return the time at which to call C{expired}, unless something happens before; None without one."""
        core = self._core
        if core.state == "ended":
            return None
        tests = [self._testTime(link) for link in core.active]
        times = [core.until, self._linkExchanges.until, *self._keyExchanges.untils, *tests, self._idleTime()]
        return min((each for each in times if each is not None), default=None)

    def expired(self, now: float) -> None:
        """Handle passed deadlines: end exchanges, test silent links, shut down an idle group."""
        core = self._core
        if core.until is not None and core.until <= now:
            self._inputs.expired()
        self._keyExchanges.expired(now)
        until = self._linkExchanges.until
        if until is not None and until <= now:
            self._linkExchanges.expired(now)
            self._keyExchanges.sendQueued(now)
        self._discountPause(now)
        for link in core.active:
            test = self._testTime(link) if link.state == "active" else None
            if test is not None and test <= now:
                self._test(link, now)
        idle = self._idleTime()
        if idle is not None and idle <= now:
            self.shutdown(now)

    def _discountPause(self, now: float) -> None:
        """
        Count no time as silence of the peer in which this end could not probe it: its process was suspended,
        or the clock has jumped.
        """
        active = self._core.active
        due = min((each for link in active if (each := self._testTime(link)) is not None), default=now)
        late = now - due
        if late > self._timing.response:
            for link in active:
                link.lastReceivedAt = min(link.lastReceivedAt + late, now)
                if link.testedAt is not None:
                    link.testedAt = min(link.testedAt + late, now)

    def _testTime(self, link: LinkLife) -> float | None:
        """Return the time of the next L{_test} of a link; None if links are not tested."""
        if self._core.state != "active" or not self._timing.testIdle or self.isWatched:
            return None
        timing = self._timing
        isAlone = len(self._core.active) < 2
        if link.testedAt is not None and link.lastReceivedAt <= link.testedAt:
            if link.isCompared:
                return link.testedAt + timing.response
            interval = timing.testInterval if isAlone else min(timing.testInterval, timing.testSeveral)
            return min(link.testedAt + interval, link.lastReceivedAt + timing.silence)
        return link.lastReceivedAt + (
            timing.testIdle if isAlone else min(timing.testIdle, timing.testSeveral)
        )

    def _test(self, link: LinkLife, now: float) -> None:
        """
        Send TEST LINK on all links, or handle a missing response.

        The first missing response is compared with the other links (C{isCompared}): if one of them has
        received anything since the test, the peer runs, and this link has failed. Otherwise the peer may be
        busy, so the tests are repeated until C{timing.silence} has passed.
        """
        if now >= link.lastReceivedAt + self._timing.silence:
            self.linkDown(now, "the peer has answered no TEST LINK for too long", link)
            return
        testedAt = link.testedAt
        active = self._core.active
        if link.isCompared and testedAt is not None and link.lastReceivedAt <= testedAt:
            link.isCompared = False
            if any(other.testedAt is None or other.lastReceivedAt > testedAt for other in active):
                self.linkDown(
                    now, "the peer does not answer TEST LINK on it, but sends on another link", link
                )
            return
        for each in active:
            each.testedAt = now
            each.isCompared = len(active) > 1
            each.testData = secrets.token_bytes(16)
            self._core.sendRequest(TestLink(userData=each.testData), 0, each)

    def _idleTime(self) -> float | None:
        if self._idleSince is None or self._core.state != "active":
            return None
        server = self.role is Role.SERVER
        return self._idleSince + (self._timing.serverIdle if server else self._timing.clientIdle)

    # Messages of the peer

    def received(self, raw: Buffer, now: float, link: LinkLife | None = None) -> None:
        """Process an LLC message of a link; None: the first one."""
        self._core.arriving = link = self.first if link is None else link
        link.lastReceivedAt = now
        if self._core.state == "ended" or link.state == "gone":
            return
        try:
            message = decode(raw)
            if message.header.version == 2:
                self._core.bigEndian = message.header.bigEndian
            self._dispatch(message, link, now)
        except WireError as error:
            self._inputs.violated(str(error))

    def _dispatch(self, message: LLC, link: LinkLife, now: float) -> None:
        """Process a message by its type; raises L{WireError} for a violation."""
        body = message.body
        if isinstance(body, ConfirmLink):
            # On the first link it confirms the group, on others a link that was added.
            if link is self.first:
                self._groupConfirmed(message, body, now)
            else:
                self._onLinks(message, link, now)
        elif isinstance(body, TestLink):
            if not message.isResponse:
                self._core.reply(message)
            elif body.userData == link.testData:
                link.testedAt = None
        elif isinstance(body, ConfirmRKey):
            self._confirmRKeyReceived(message, body, link, now)
        elif isinstance(body, ConfirmRKeyContinuation):
            self._continuationReceived(message, body, link)
        elif isinstance(body, DeleteRKey):
            self._deleteRKeyReceived(message, body, link, now)
        elif isinstance(body, DeleteLink):
            self._deleteLinkReceived(message, body, link, now)
        elif isinstance(body, (AddLink, RequestAddLink)):
            if self._core.state == "active":
                self._onLinks(message, link, now)
            elif not message.isResponse:
                self._core.reply(message, LLCFlags.REJECT, AddLinkReason.NO_ALTERNATE_PATH)
        elif isinstance(body, AddLinkContinuation):
            self._onLinks(message, link, now)
        elif body is None:
            # As in Linux, a message of an unknown type ends the group.
            raise WireError("LLC", 0, f"no such message: {message.type}")

    def _onLinks(self, message: LLC, link: LinkLife, now: float) -> None:
        """Process a message about links; requests that waited for the exchange continue after it."""
        before = self._core.links[:]
        self._linkExchanges.received(message, link, now)
        for gone in before:
            if gone.state == "gone":
                self._keyExchanges.lostBy(gone, now)
        self._keyExchanges.sendQueued(now)

    def _groupConfirmed(self, message: LLC, body: ConfirmLink, now: float) -> None:
        """Process CONFIRM LINK of the first contact: the server's request, or the client's response."""
        if message.isResponse != (self.role is Role.SERVER):
            if not message.isResponse:
                raise WireError("CONFIRM LINK", 3, "a client does not send this request")
            return
        core = self._core
        if core.state != "confirming":
            self._inputs.confirmed(now)
        elif message.header.flags & LLCFlags.NO_EYECATCHER != LLCFlags.NO_EYECATCHER:
            self._inputs.refused(Diagnosis.RMBE_EC)
        elif LinkEnd(body.mac, body.gid, body.qpn) != self.first.remote:
            self._inputs.refused(Diagnosis.NOSRVLINK)
        elif message.isResponse and body.link != self.first.number:
            self._inputs.refused(Diagnosis.NOSRVLINK)
        else:
            self.first.number = body.link
            core.peerLinks = body.maxLinks
            self._inputs.confirmed(now)
            if self.role is Role.SERVER:
                self._linkExchanges.renew()
            self._keyExchanges.sendQueued(now)

    def _confirmRKeyReceived(self, message: LLC, body: ConfirmRKey, link: LinkLife, now: float) -> None:
        if message.isResponse:
            self._keyExchanges.confirmed(message, body, link, now)
            return
        tokens = {link: Token(body.rkey, body.address)}
        self._addTokens(tokens, body.onLinks[: body.others])
        if body.others > len(body.onLinks):
            self._partial = message, link, tokens
        else:
            self._answerConfirmRKey(message, tokens)

    def _continuationReceived(self, message: LLC, body: ConfirmRKeyContinuation, link: LinkLife) -> None:
        if self._partial is None or message.isResponse or self._partial[1] is not link:
            return
        request, _, tokens = self._partial
        self._addTokens(tokens, body.onLinks[: body.remaining])
        if body.remaining <= len(body.onLinks):
            self._partial = None
            self._answerConfirmRKey(request, tokens)

    def _addTokens(self, tokens: dict[LinkLife, Token], onLinks: Sequence[LinkRKey]) -> None:
        """Add the keys of a buffer on further links, which the peer names by their numbers."""
        links = {link.number: link for link in self._core.links}
        for each in onLinks:
            if each.link in links:
                tokens.setdefault(links[each.link], Token(each.rkey, each.address))

    def _answerConfirmRKey(self, request: LLC, tokens: dict[LinkLife, Token]) -> None:
        try:
            self._learn(tokens)
        except Refused:
            self._core.reply(request, LLCFlags.NEGATIVE)
        else:
            self._core.reply(request)

    def _deleteRKeyReceived(self, message: LLC, body: DeleteRKey, link: LinkLife, now: float) -> None:
        """Process DELETE RKEY: forget the peer's buffers on all links, or handle the response."""
        if message.isResponse:
            self._keyExchanges.deleted(body, link, now)
            return
        keys = message.deletedRKeys
        unknown = 0
        elsewhere: dict[LinkLife, list[RKey]] = {}
        for index, rkey in enumerate(keys):
            buffer = link.remoteKeys.get(rkey)
            if buffer is None:
                unknown |= 0x80 >> index if index < KEYS_AT_ONCE else 0
                continue
            for other, token in buffer.items():
                other.remoteKeys.pop(token.rkey, None)
                if other is not link and other.state != "gone":
                    elsewhere.setdefault(other, []).append(token.rkey)
        negative = LLCFlags.NEGATIVE if unknown else 0
        self._core.reply(message, negative, body=body.replace(errorMask=unknown))
        self._core.pending.append(RemoteRKeysDeleted(keys, link))
        for other, gone in elsewhere.items():
            self._core.pending.append(RemoteRKeysDeleted(tuple(gone), other))

    def _deleteLinkReceived(self, message: LLC, body: DeleteLink, link: LinkLife, now: float) -> None:
        """Process DELETE LINK: that of all links or of the last one ends the group."""
        isLast = [each.number for each in self._core.active or self._core.links] == [body.link]
        if message.isResponse:
            if self._linkExchanges.isDeleting(body.link):
                self._onLinks(message, link, now)
            else:
                self._inputs.linkDeleted()
        elif message.header.flags & LLCFlags.ALL_LINKS or isLast:
            self._inputs.deleteLink(message, now)
            if self.role is Role.CLIENT:
                self._inputs.linkDeleted()  # the client has responded, and expects nothing more
        else:
            self._onLinks(message, link, now)
