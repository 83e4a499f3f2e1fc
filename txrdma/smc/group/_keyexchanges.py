"""
Exchanges about buffers: CONFIRM RKEY announces local buffers to the peer, DELETE RKEY withdraws them.

Follows RFC 7609, 4.4.2 and A.3.5 to A.3.8. Each request covers all links of the group, and is repeated on
another link when that link fails. L{txrdma.smc.group._linkgroup} calls this.

Theory of operation. Requests are queued, and sent as far as the window of the group allows: confirmations
before deletions, because connections wait for them, and none while a link is being added, because its keys
would be missing. If a link was added meanwhile, the buffer is announced again. A CONFIRM RKEY without a
response in time has failed, and its connection is declined; a late positive response is followed by DELETE
RKEY, since the peer counts the buffer. A DELETE RKEY without one is only overdue: the
peer may still write to the buffer, so it is retained until the response or the end of the group, and freed
before only when more than L{MOST_OVERDUE} buffers are overdue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import field

from txrdma.iba.types import RKey
from txrdma.kit.values import record
from txrdma.smc.group._groupstate import (
    LinkGroupCore,
    LinkLife,
    RKeyConfirmed,
    RKeyRefused,
    RKeysDeleted,
    Token,
)
from txrdma.smc.group._linkexchanges import LinkExchanges
from txrdma.smc.wire.llc import (
    ConfirmRKey,
    ConfirmRKeyContinuation,
    DeleteRKey,
    LinkRKey,
    LLC,
    LLCFlags,
)

KEYS_AT_ONCE = 8
"""Largest number of remote keys in one DELETE RKEY (RFC 7609, A.3.8)."""

MOST_OVERDUE = 32
"""
Largest number of buffers in overdue DELETE RKEYs; above it, those of the oldest are freed. Late responses to
as many CONFIRM RKEYs are recognized.
"""


@record
class _KeyRequest:
    """
    A local CONFIRM RKEY or DELETE RKEY.

    @ivar names: names of the buffers.
    @ivar carrier: the link on which the request was sent; C{keys}: the keys on that link; C{announcedOn}: the
        links whose keys it announced.
    @ivar isOverdue: the response is late, so the next request is sent. The peer's writes to a buffer arrive
        before its response to DELETE RKEY, so the buffer is retained until then.
    """

    names: tuple[RKey, ...]
    isDeletion: bool
    until: float = 0.0
    carrier: LinkLife | None = None
    keys: tuple[RKey, ...] = ()
    isOverdue: bool = False
    announcedOn: list[LinkLife] = field(default_factory=list)


class KeyExchanges:
    """Local requests about buffers, as many at a time as the core's window allows."""

    def __init__(self, core: LinkGroupCore, links: LinkExchanges) -> None:
        self._core = core
        self._links = links
        self._queued: deque[_KeyRequest] = deque()
        self._pending: list[_KeyRequest] = []
        self._late: deque[_KeyRequest] = deque()  # CONFIRM RKEYs that were not answered in time
        self._wasUnanswered = False  # the last CONFIRM RKEY was not answered in time

    @property
    def untils(self) -> list[float]:
        """Deadlines of the pending exchanges, in seconds."""
        return [request.until for request in self._pending if not request.isOverdue]

    def confirm(self, name: RKey, now: float) -> None:
        """Announce a buffer to the peer, before queued deletions: connections wait for it."""
        first = next((at for at, each in enumerate(self._queued) if each.isDeletion), len(self._queued))
        self._queued.insert(first, _KeyRequest((name,), False))
        self.sendQueued(now)

    def delete(self, names: Sequence[RKey], now: float) -> None:
        """Withdraw buffers from the peer."""
        # No connection may choose these buffers from now on, although the peer may still write to them.
        self._core.known.difference_update(names)
        for at in range(0, len(names), KEYS_AT_ONCE):
            self._queued.append(_KeyRequest(tuple(names[at : at + KEYS_AT_ONCE]), True))
        self.sendQueued(now)

    def lostBy(self, link: LinkLife, now: float) -> None:
        """Repeat the requests of a failed link on another one."""
        for request in [each for each in self._pending if each.carrier is link]:
            self._pending.remove(request)
            request.isOverdue = False
            self._queued.appendleft(request)
        self.sendQueued(now)

    def confirmed(self, message: LLC, body: ConfirmRKey, link: LinkLife, now: float) -> None:
        """Handle a response to CONFIRM RKEY."""
        self._wasUnanswered = False
        for request in self._pending:
            if not request.isDeletion and request.carrier is link and request.keys == (body.rkey,):
                self._end(request, not message.header.flags & LLCFlags.NEGATIVE, now)
                return
        for request in self._late:
            if request.carrier is link and request.keys == (body.rkey,):
                self._late.remove(request)
                if message.header.flags & LLCFlags.NEGATIVE or self._isUsed(request.names[0]):
                    self._forget(request)
                else:
                    self.delete(request.names, now)
                return

    def deleted(self, body: DeleteRKey, link: LinkLife, now: float) -> None:
        """Handle a response to DELETE RKEY; without keys (Linux, version 2) it is for the oldest request."""
        # Peers answer in order, so the answer to a later request is that of the earlier ones as well.
        requests = [request for request in self._pending if request.isDeletion and request.carrier is link]
        answered = [at for at, each in enumerate(requests) if each.keys == body.rkeys[: len(each.keys)]]
        for request in requests[: answered[0] + 1 if answered else 1]:
            self._end(request, True, now)

    def expired(self, now: float) -> None:
        """End overdue requests; a buffer to delete is retained until the peer has confirmed that."""
        for request in [each for each in self._pending if each.until <= now and not each.isOverdue]:
            if request.isDeletion:
                request.isOverdue = True
            else:
                self._wasUnanswered = True
                self._late.append(request)
                if len(self._late) > MOST_OVERDUE:
                    self._forget(self._late.popleft())
                self._end(request, False, now)
        overdue = [request for request in self._pending if request.isOverdue]
        excess = sum(len(request.names) for request in overdue) - MOST_OVERDUE
        for request in overdue:
            if excess > 0:
                excess -= len(request.names)
                self._end(request, False, now)
        self.sendQueued(now)

    def sendQueued(self, now: float) -> None:
        """Send queued requests, as far as the window allows; none while a link is being added."""
        core = self._core
        while (
            self._queued
            and len(self.untils) < core.window
            and core.state == "active"
            and not self._links.isAdding
        ):
            request = self._queued.popleft()
            timing = core.timing
            # Connections wait for CONFIRM RKEY, so a peer that left the last one unanswered gets less time.
            isPatient = not (request.isDeletion or self._wasUnanswered)
            request.until = now + (timing.confirmRKey if isPatient else timing.response)
            request.carrier = carrier = core.carrier
            self._pending.append(request)
            if request.isDeletion:
                self._sendDelete(request, carrier)
            else:
                self._sendConfirm(request, carrier)

    def _sendDelete(self, request: _KeyRequest, carrier: LinkLife) -> None:
        """Send DELETE RKEY with the buffers' keys on this link."""
        keys = tuple(carrier.localTokens.get(name, Token(name, 0)).rkey for name in request.names)
        request.keys = keys
        rest = (RKey(0),) * (KEYS_AT_ONCE - len(keys))
        self._core.sendRequest(DeleteRKey(count=len(keys), rkeys=keys + rest), 0, carrier)

    def _sendConfirm(self, request: _KeyRequest, carrier: LinkLife) -> None:
        """Send CONFIRM RKEY with the buffer's keys on all links, by continuations if necessary."""
        name = request.names[0]
        request.announcedOn = [link for link in self._core.active if name in link.localTokens]
        rkey, address = carrier.localTokens.get(name, Token(name, 0))
        request.keys = (rkey,)
        others = [
            LinkRKey(link=link.number, rkey=token.rkey, address=token.address)
            for link in request.announcedOn
            for token in (link.localTokens[name],)
            if link is not carrier
        ]
        here, more = _filled(others[:2], 2), others[2:]
        body = ConfirmRKey(others=len(others), rkey=rkey, address=address, onLinks=here)
        self._core.sendRequest(body, 0, carrier)
        while more:
            rest = ConfirmRKeyContinuation(remaining=len(more), onLinks=_filled(more[:3], 3))
            self._core.sendRequest(rest, 0, carrier)
            more = more[3:]

    def _end(self, request: _KeyRequest, hasSucceeded: bool, now: float) -> None:
        self._pending.remove(request)
        name = request.names[0]
        if (
            hasSucceeded
            and not request.isDeletion
            and any(name in link.localTokens and link not in request.announcedOn for link in self._core.links)
        ):
            self._queued.appendleft(request)  # a link was added meanwhile, whose key the peer does not know
        else:
            self._report(request, hasSucceeded)
        self.sendQueued(now)

    def _report(self, request: _KeyRequest, hasSucceeded: bool) -> None:
        """Record the outcome of a request, and report it to the owner of the group."""
        if request.isDeletion:
            self._forget(request)
            self._core.pending.append(RKeysDeleted(request.names))
        elif hasSucceeded:
            self._core.known.add(request.names[0])
            self._core.pending.append(RKeyConfirmed(request.names[0]))
        else:
            if request not in self._late:
                self._forget(request)
            self._core.pending.append(RKeyRefused(request.names[0]))

    def _isUsed(self, name: RKey) -> bool:
        """Return whether a buffer is known to the peer, or a request names it."""
        requests = (*self._pending, *self._queued)
        return name in self._core.known or any(name in each.names for each in requests)

    def _forget(self, request: _KeyRequest) -> None:
        """Forget the keys of buffers that the peer does not use, unless their names are used again."""
        for name in request.names:
            if not self._isUsed(name):
                for link in self._core.links:
                    link.localTokens.pop(name, None)

    def abandon(self) -> None:
        """Refuse all pending requests, because the group has ended."""
        for request in (*self._pending, *self._queued):
            self._report(request, False)
        self._pending.clear()
        self._queued.clear()


def _filled(keys: Sequence[LinkRKey], count: int) -> tuple[LinkRKey, ...]:
    """Pad a message's list of keys with zeros."""
    return (*keys, *[LinkRKey()] * (count - len(keys)))
