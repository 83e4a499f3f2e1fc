"""
Exchanges that add links to a group, and delete them.

Follows RFC 7609, 4.4 and 4.5: ADD LINK with continuations, CONFIRM LINK on the new link, and DELETE LINK. One
exchange runs at a time. The server runs them; a client requests them, and the server's requests take
precedence. L{txrdma.smc.group._linkgroup} calls this.

Theory of operation. C{current} is the exchange in progress. It begins by the wish of the owner, by a message
of the peer or by the loss of a link, and ends with the last message, at its deadline, or when a link that it
uses is lost. Then the next one begins: first DELETE LINKs that wait, then one request of the peer that
arrived meanwhile. Further requests are dropped, because the peer repeats them. To add a link, ADD LINK gives
the ends of the link to each other, continuations (in version 1) the keys of all buffers on it, and CONFIRM
LINK shows that it works. Messages to send and events go to the L{LinkGroupCore}.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import field
from itertools import combinations
from typing import Final

from txrdma.error import WireError
from txrdma.iba.types import RKey
from txrdma.kit.values import record
from txrdma.smc.group._groupstate import (
    LinkAdded,
    LinkEnd,
    LinkGroupCore,
    LinkLife,
    LinkLost,
    LinkMade,
    LinkRequested,
    Token,
)
from txrdma.smc.terms.offer import MOST_LINKS
from txrdma.smc.wire.llc import (
    AddLink,
    AddLinkContinuation,
    AddLinkExtension,
    AddLinkReason,
    ConfirmLink,
    DeleteLink,
    DeleteReason,
    LLC,
    LLCFlags,
    RequestAddLink,
    RKeyPair,
)

_PAIRS = 2
"""Buffers in one ADD LINK CONTINUATION (RFC 7609, A.3.3)."""

MOST_TRIES = 10
"""
Largest number of attempts to replace a failed link, after delays from 1 s to 512 s.

After that, only a change of the ports starts new attempts.
"""

_RETAINED: Final = 2
"""Number of lost links whose keys of buffers are retained, for handshakes in which the peer named one."""


@record(eq=False)
class _Adding:
    """
    An ADD LINK exchange in progress.

    @ivar stage: C{"wanted"}: the owner chooses a port; C{"offered"}: the server has sent ADD LINK; C{"keys"}:
        exchange of keys; C{"making"}: the owner connects; C{"confirming"}: waiting for CONFIRM LINK.
    @ivar carrier: the old link, on which all messages except CONFIRM LINK are sent.
    @ivar request: on a client, the server's ADD LINK.
    @ivar left: local buffers that are not announced yet.
    @ivar remaining: the number of remaining buffers in the peer's last ADD LINK CONTINUATION.
    """

    carrier: LinkLife
    request: LLC | None = None
    stage: str = "wanted"
    link: LinkLife | None = None
    peerEnd: AddLink | None = None
    left: list[RKeyPair] = field(default_factory=list)
    remaining: int = 256
    until: float | None = None


@record(eq=False)
class _Deleting:
    """A DELETE LINK exchange of the server, in progress or queued."""

    number: int
    reason: DeleteReason
    flags: int
    until: float | None = None


class LinkExchanges:
    """The exchanges about links of one group, of which C{current} is in progress."""

    def __init__(self, core: LinkGroupCore) -> None:
        self.current: _Adding | _Deleting | None = None
        self._core = core
        self._deletions: deque[_Deleting] = deque()
        self._remembered: tuple[LLC, LinkLife] | None = None  # a request for the next exchange, with its link
        self._lastNumber = core.links[0].number
        self._tries = 0
        self._next: float | None = None  # time of the next attempt to add a link
        self._wanted: LinkEnd | None = None  # on a client: the local port that needs a link
        self._unanswered: int | None = None  # a link offered to the client without a timely answer

    @property
    def isAdding(self) -> bool:
        """Whether a link is being added, during which the list of buffers is exchanged."""
        return isinstance(self.current, _Adding)

    def isDeleting(self, number: int) -> bool:
        """Return whether a local DELETE LINK for this link is pending."""
        return isinstance(self.current, _Deleting) and self.current.number == number

    @property
    def until(self) -> float | None:
        """Deadline of the current exchange, or time of the next one, in seconds."""
        return self.current.until if self.current is not None else self._next

    # Adding

    def mayAdd(self) -> bool:
        """Return whether another link may be added; a better one may replace an asymmetric link."""
        core = self._core
        most = min(core.maxLinks, core.peerLinks, MOST_LINKS)
        active = core.active
        if most < 2 or core.state != "active":
            return False
        if len(active) < most:
            return True
        return len(active) == most and not any(
            first.isSymmetricTo(second) for first, second in combinations(active, 2)
        )

    def renew(self) -> None:
        """Add a link, as a server, because another path may be available now."""
        self._tries = 0
        self.want()
        if self.current is not None:
            self._next = 0.0  # as soon as the current exchange ends

    def want(self) -> None:
        """Add a link, as a server, if the owner has another path."""
        self._next = None
        if self.current is None and self.mayAdd():
            self.current = _Adding(self._core.carrier)
            self._core.pending.append(LinkRequested(None))

    def _requestLater(self, now: float) -> None:
        """Replace a failed link, as a server, after a delay that doubles with each attempt."""
        if self._core.isServer and self._tries < MOST_TRIES:
            self._next = now + 2.0**self._tries
            self._tries += 1

    def request(self, port: LinkEnd | None, now: float) -> None:
        """
        Request a link to a local port, as a client; repeat that as long as another link may be added.

        A link that the server is adding may fail, because this port was not active when the exchange began.

        @param port: None when no local port is free.
        """
        self._wanted, self._tries, self._next = port, 0, None
        self._requestAgain(now)

    def _requestAgain(self, now: float) -> None:
        port, self._next = self._wanted, None
        if port is None or not self.mayAdd():
            self._wanted = None
            return
        if self.current is None:
            if self._core.version == 2:
                self._core.sendRequest(RequestAddLink(gidCount=1, gid=port.gid))
            else:
                self._core.sendRequest(AddLink(mac=port.mac, gid=port.gid))
        if self._tries < MOST_TRIES:
            self._next = now + 2.0**self._tries
            self._tries += 1

    def offer(
        self,
        local: LinkEnd,
        mtu: int,
        psn: int,
        tokens: Mapping[RKey, Token],
        now: float,
        isDirect: bool,
    ) -> LinkLife | None:
        """
        Answer L{LinkRequested} with the local end of a new link.

        @param tokens: all local buffers on that link, by their names.
        @param isDirect: no router is known on the route.
        @return: the link; None if it is no longer wanted.
        """
        core, adding = self._core, self.current
        if not isinstance(adding, _Adding) or adding.stage != "wanted" or core.state != "active":
            return None
        number = adding.peerEnd.link if adding.peerEnd is not None else self._freeNumber()
        adding.link = link = LinkLife(local, number, localTokens=dict(tokens), lastReceivedAt=now)
        core.links.append(link)
        old = adding.carrier.localTokens
        pairs = [
            RKeyPair(known=old[name].rkey, new=token.rkey, address=token.address)
            for name, token in tokens.items()
            if name in core.known and name in old
        ]
        body = AddLink(mac=local.mac, gid=local.gid, qpn=local.qpn, link=number, mtu=mtu, psn=psn)
        extension = None
        if core.version == 2:
            extension = AddLinkExtension(local.gid, isDirect, tuple(pairs))
        else:
            adding.left = pairs
        adding.until = now + core.timing.response
        if adding.peerEnd is None:
            adding.stage = "offered"
            core.sendRequest(body, 0, adding.carrier, extension)
        else:
            core.sendRequest(body, LLCFlags.RESPONSE, adding.carrier, extension)
            self._agreed(adding, adding.request, now)
        return link

    def decline(self, now: float) -> None:
        """Answer L{LinkRequested} negatively, because there is no other path."""
        adding = self.current
        if isinstance(adding, _Adding) and adding.stage == "wanted":
            if adding.request is not None:
                self._reject(adding.request, adding.carrier)
            self._end(now)

    def _reject(self, request: LLC, link: LinkLife) -> None:
        self._core.arriving = link
        self._core.reply(request, LLCFlags.REJECT, AddLinkReason.NO_ALTERNATE_PATH)

    def _freeNumber(self) -> int:
        taken = {link.number for link in self._core.links} | {each.number for each in self._deletions}
        while True:  # not a recent number: messages about it may still be in flight
            self._lastNumber = self._lastNumber % 255 + 1
            if self._lastNumber not in taken:
                return self._lastNumber

    def _agreed(self, adding: _Adding, message: LLC | None, now: float) -> None:
        """Exchange buffers, because both ends of the new link are known."""
        assert adding.link is not None and adding.peerEnd is not None and message is not None
        peerEnd = adding.peerEnd
        adding.link.remote = LinkEnd(peerEnd.mac, peerEnd.gid, peerEnd.qpn)
        if message.header.version == 2:
            for pair in message.extension.pairs if message.extension is not None else ():
                self._learn(adding, pair)
            self._make(adding, now)
        else:
            adding.stage = "keys"
            adding.until = now + self._core.timing.response
            if self._core.isServer:
                self._sendKeys(adding, 0)

    def _learn(self, adding: _Adding, pair: RKeyPair) -> None:
        """Record the key of a peer's buffer on the new link; ignore one that the old link does not know."""
        buffer = adding.carrier.remoteKeys.get(pair.known)
        if buffer is not None and adding.link is not None:
            buffer[adding.link] = Token(pair.new, pair.address)
            adding.link.remoteKeys[pair.new] = buffer
            for lost in [each for each in buffer if each.state == "gone"][:-_RETAINED]:
                del buffer[lost]

    def _sendKeys(self, adding: _Adding, flags: int) -> None:
        """Send the next buffers' keys. Linux includes the buffers of the message in the remaining count."""
        assert adding.link is not None
        count = len(adding.left)
        pairs, adding.left = adding.left[:_PAIRS], adding.left[_PAIRS:]
        pairs += [RKeyPair()] * (_PAIRS - len(pairs))
        body = AddLinkContinuation(link=adding.link.number, remaining=count, pairs=tuple(pairs))
        self._core.sendRequest(body, flags, adding.carrier)

    def _make(self, adding: _Adding, now: float) -> None:
        """Have the owner connect the new link, whose ends and buffers are known to both sides."""
        assert adding.link is not None and adding.peerEnd is not None
        adding.stage = "making"
        adding.until = now + self._core.timing.newLink
        self._core.pending.append(LinkMade(adding.link, adding.peerEnd))

    def made(self, link: LinkLife, now: float) -> None:
        """Record that the queue pair of a new link is connected."""
        adding = self.current
        if isinstance(adding, _Adding) and adding.link is link and adding.stage == "making":
            adding.stage = link.state = "confirming"
            adding.until = now + self._core.timing.newLink
            if self._core.isServer:
                self._core.confirmLink(0, link)

    # Deleting

    def lost(
        self, link: LinkLife, text: str, now: float, reason: DeleteReason = DeleteReason.LOST_PATH
    ) -> None:
        """Report the failure of one of several links to the peer, or request its deletion."""
        core, current = self._core, self.current
        wasKnown = link.state in ("active", "confirming")
        wasOffered = isinstance(current, _Adding) and current.link is link
        self._abandonAdding(link)
        self._drop(link, text)
        if (wasKnown or wasOffered) and reason != DeleteReason.ASYMMETRIC_LINK_NO_LONGER_NEEDED:
            self._requestLater(now)
        if wasKnown and core.isServer:
            self._deletions.append(_Deleting(link.number, reason, LLCFlags.ORDERLY))
        elif wasKnown:
            core.sendRequest(DeleteLink(link=link.number, reason=reason), LLCFlags.ORDERLY)
        if isinstance(current, _Deleting):
            self._sendDelete(current, now)  # the request may have been sent on that link
        elif self.current is None:
            self._end(now)

    def _abandonAdding(self, lost: LinkLife) -> None:
        """
        End the exchange that adds a link if a lost link is the new one or, until CONFIRM LINK, the one that
        carries ADD LINK.
        """
        adding = self.current
        if not isinstance(adding, _Adding):
            return
        if adding.link is lost:
            self.current = None
        elif adding.carrier is lost and adding.stage != "confirming":
            self.current = None
            if adding.link is not None:
                self._drop(adding.link, "the link that carried its ADD LINK was lost")

    def _drop(self, link: LinkLife, text: str) -> None:
        """Remove a link, and report its loss."""
        core = self._core
        if link in core.links:
            core.links.remove(link)
            link.state = "gone"
            for buffer in link.remoteKeys.values():
                if link in buffer:
                    buffer[link] = buffer.pop(link)  # the last one: see _RETAINED
            core.output = [each for each in core.output if each[0] is not link]
            core.pending.append(LinkLost(link, text))

    def _sendDelete(self, deleting: _Deleting, now: float) -> None:
        deleting.until = now + self._core.timing.response
        self._core.sendRequest(DeleteLink(link=deleting.number, reason=deleting.reason), deleting.flags)

    def _end(self, now: float) -> None:
        """End the current exchange, and begin the next."""
        self.current = None
        if self._deletions:
            self.current = self._deletions.popleft()
            self._sendDelete(self.current, now)
        elif self._remembered is not None:
            (message, link), self._remembered = self._remembered, None
            if link in self._core.links:
                self.received(message, link, now)

    def expired(self, now: float) -> None:
        """End the exchange whose deadline has passed."""
        current = self.current
        if current is None and self._core.isServer:
            self.want()
        elif current is None:
            self._requestAgain(now)
        elif isinstance(current, _Adding) and current.link is not None:
            if current.stage == "offered":
                self._unanswered = current.link.number
            self.lost(current.link, "the peer has not confirmed it", now)
        else:
            self._end(now)

    # Messages of the peer

    def received(self, message: LLC, link: LinkLife, now: float) -> None:
        """Process a message about links from an active link, or CONFIRM LINK from a new one."""
        body, current = message.body, self.current
        if isinstance(body, ConfirmLink):
            self._confirmed(message, body, link, now)
        elif isinstance(body, AddLinkContinuation):
            self._keysReceived(message, body, link, now)
        elif message.isResponse:
            self._answered(message, now)
        elif isinstance(body, DeleteLink):
            self._deleteRequested(message, body, link, now)
        elif isinstance(body, RequestAddLink) and not self._core.isServer:
            raise WireError("REQUEST ADD LINK", 0, "a server requests a link, which it must add itself")
        elif isinstance(current, _Adding) and current.peerEnd is not None and current.peerEnd == body:
            pass  # a duplicate
        elif isinstance(body, AddLink) and self._isTaken(body.link):
            raise WireError("ADD LINK", 31, f"link {body.link} exists already")
        elif self._isSuperseded(body):
            self._giveUp(message, link, now)
        elif current is not None:
            # It is processed when the current exchange has ended.
            if self._remembered is None:
                self._remembered = message, link
        elif self._core.isServer:
            if self.mayAdd():
                self.renew()
            else:
                self._reject(message, link)
        elif isinstance(body, AddLink) and self.mayAdd():
            self.current = _Adding(link, message, peerEnd=body)
            self._core.pending.append(LinkRequested(body))
        else:
            self._reject(message, link)

    def _isTaken(self, number: int) -> bool:
        """Return whether the server assigns the number of an existing link to a new one."""
        # A server that offers a link again may use the number of the one that it abandons.
        making = self.current.link if isinstance(self.current, _Adding) else None
        taken = any(link.number == number and link is not making for link in self._core.links)
        return taken and not self._core.isServer

    def _isSuperseded(self, body: object) -> bool:
        """Return whether the server restarts an exchange that the client still has pending."""
        return isinstance(self.current, _Adding) and isinstance(body, AddLink) and not self._core.isServer

    def _giveUp(self, message: LLC, link: LinkLife, now: float) -> None:
        """Handle the server abandoning the link that is being added, and requesting another."""
        current = self.current
        assert isinstance(current, _Adding), "no link that is being added"
        self.current = None
        if current.link is not None:
            self._drop(current.link, "the server asks for another one")
        self.received(message, link, now)

    def _answered(self, message: LLC, now: float) -> None:
        """Process a response to ADD LINK or DELETE LINK."""
        body, current = message.body, self.current
        if isinstance(body, RequestAddLink) and self._core.isServer:
            raise WireError(
                "REQUEST ADD LINK", 3, "a client sends a response to a request that only clients send"
            )
        offered = current if isinstance(current, _Adding) and current.stage == "offered" else None
        if (
            isinstance(body, AddLink)
            and offered is not None
            and offered.link is not None
            and body.link == offered.link.number  # else it is a late answer to an earlier offer
        ):
            if message.header.flags & LLCFlags.REJECT or not body.qpn:
                self._drop(offered.link, "the peer has no other path")
                self._end(now)
            else:
                offered.peerEnd = body
                self._agreed(offered, message, now)
        elif isinstance(body, DeleteLink) and isinstance(current, _Deleting) and body.link == current.number:
            self._end(now)
        elif isinstance(body, AddLink) and body.link == self._unanswered:
            self._unanswered = None
            if body.qpn and not message.header.flags & LLCFlags.REJECT:  # the client waits for CONFIRM LINK
                self._delete(_Deleting(body.link, DeleteReason.LOST_PATH, LLCFlags.ORDERLY), now)

    def _delete(self, deleting: _Deleting, now: float) -> None:
        """Send DELETE LINK to the client as soon as no other exchange is pending."""
        self._deletions.append(deleting)
        if self.current is None:
            self._end(now)

    def _keysReceived(self, message: LLC, body: AddLinkContinuation, link: LinkLife, now: float) -> None:
        """Process ADD LINK CONTINUATION: server and client send keys in turn, until none is left."""
        current = self.current
        if not isinstance(current, _Adding) or current.stage != "keys" or current.carrier is not link:
            return
        assert current.link is not None
        if body.link != current.link.number or message.isResponse != self._core.isServer:
            return
        if body.remaining > _PAIRS and body.remaining >= current.remaining:
            raise WireError("ADD LINK CONTINUATION", 5, "the number of remaining buffers does not decrease")
        current.remaining = body.remaining
        for pair in body.pairs[: body.remaining]:
            self._learn(current, pair)
        isPeerDone = body.remaining <= _PAIRS
        current.until = now + self._core.timing.response
        if self._core.isServer:
            if isPeerDone and not current.left:
                self._make(current, now)
            else:
                self._sendKeys(current, 0)
        else:
            isDone = isPeerDone and len(current.left) <= _PAIRS
            self._sendKeys(current, LLCFlags.RESPONSE)
            if isDone:
                self._make(current, now)

    def _confirmed(self, message: LLC, body: ConfirmLink, link: LinkLife, now: float) -> None:
        """Process CONFIRM LINK of a new link: it is active now."""
        core, current = self._core, self.current
        if not isinstance(current, _Adding) or current.link is not link or link.state != "confirming":
            return
        if message.isResponse != core.isServer:
            return
        if LinkEnd(body.mac, body.gid, body.qpn) != link.remote or body.link != link.number:
            self.lost(link, "CONFIRM LINK names another link", now)
            return
        if not core.isServer:
            core.confirmLink(LLCFlags.RESPONSE, link)
        link.state = "active"
        link.lastReceivedAt = now
        core.pending.append(LinkAdded(link))
        if core.isServer:
            self._tries = 0
            self._next = None
        self._end(now)
        if core.isServer:
            redundant = self._redundant()
            if redundant is not None:
                reason = DeleteReason.ASYMMETRIC_LINK_NO_LONGER_NEEDED
                self.lost(redundant, "two links are symmetric", now, reason)
            else:
                self.want()

    def _redundant(self) -> LinkLife | None:
        """Return a redundant asymmetric link if two other links share no port, else None."""
        active = self._core.active
        for first, second in combinations(active, 2):
            if first.isSymmetricTo(second):
                for each in active:
                    if not (
                        each in (first, second) or each.isSymmetricTo(first) and each.isSymmetricTo(second)
                    ):
                        return each
        return None

    def _deleteRequested(self, message: LLC, body: DeleteLink, link: LinkLife, now: float) -> None:
        """Process DELETE LINK: a server deletes the link by its own DELETE LINK, a client responds."""
        core = self._core
        gone = next((each for each in core.links if each.number == body.link), None)
        if core.isServer:
            if gone is not None:
                self.lost(gone, "the peer has lost it", now, body.reason)
            elif not any(
                each.number == body.link
                for each in (self.current, *self._deletions)
                if isinstance(each, _Deleting)
            ):
                core.reply(message, body=body.replace(reason=DeleteReason.LINK_UNKNOWN))
            return
        if gone is None:
            core.reply(message, body=body.replace(reason=DeleteReason.LINK_UNKNOWN))
            return
        self._abandonAdding(gone)
        self._drop(gone, "the peer has deleted it")
        if link is gone:
            core.arriving = core.carrier
        core.reply(message)
        if self.current is None:
            self._end(now)
