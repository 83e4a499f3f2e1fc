"""
Exchanges about buffers: CONFIRM RKEY announces local buffers to the peer, DELETE RKEY withdraws them.

Follows RFC 7609, 4.4.2 and A.3.5 to A.3.8. Each request covers all links of the group, and is repeated on
another link when its own fails. L{txrdma.smc.group._linkgroup} calls this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import field

from txrdma.iba.types import RKey
from txrdma.kit.values import record
from txrdma.smc.group._linkflows import LinkFlows
from txrdma.smc.group._linkstate import (
    LinkGroupCore,
    LinkLife,
    RKeyConfirmed,
    RKeyRefused,
    RKeysDeleted,
    Token,
)
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
"""Largest number of overdue DELETE RKEYs; above it, the oldest ends, and its buffers are freed."""


@record
class _Flow:
    """
    A local CONFIRM RKEY or DELETE RKEY.

    @ivar rkeys: names of the buffers.
    @ivar carrier: the link on which the request was sent; C{asked}: the keys on that link; C{informed}: the
        links whose keys it announced.
    @ivar isOverdue: the response is late, so the next request is sent. The peer's writes to a buffer arrive
        before its response to DELETE RKEY, so the buffer is retained until then.
    """

    rkeys: tuple[RKey, ...]
    isDeletion: bool
    until: float = 0.0
    carrier: LinkLife | None = None
    asked: tuple[RKey, ...] = ()
    isOverdue: bool = False
    informed: list[LinkLife] = field(default_factory=list)


class KeyFlows:
    """Local requests about buffers, as many at a time as the core's window allows."""

    def __init__(self, core: LinkGroupCore, links: LinkFlows) -> None:
        self._core = core
        self._links = links
        self._waiting: deque[_Flow] = deque()
        self._flows: list[_Flow] = []
        self._isSilent = False  # the last CONFIRM RKEY is unanswered

    @property
    def untils(self) -> list[float]:
        """Deadlines of the pending exchanges, in seconds."""
        return [flow.until for flow in self._flows if not flow.isOverdue]

    def confirm(self, name: RKey, now: float) -> None:
        """Announce a buffer to the peer."""
        self._waiting.append(_Flow((name,), False))
        self.next(now)

    def delete(self, names: Sequence[RKey], now: float) -> None:
        """Withdraw buffers from the peer."""
        # No connection may choose these buffers from now on, although the peer may still write to them.
        self._core.known.difference_update(names)
        for at in range(0, len(names), KEYS_AT_ONCE):
            self._waiting.append(_Flow(tuple(names[at : at + KEYS_AT_ONCE]), True))
        self.next(now)

    def lostBy(self, link: LinkLife, now: float) -> None:
        """Repeat the requests of a failed link on another one."""
        for flow in [flow for flow in self._flows if flow.carrier is link]:
            self._flows.remove(flow)
            flow.isOverdue = False
            self._waiting.appendleft(flow)
        self.next(now)

    def confirmed(self, one: LLC, body: ConfirmRKey, link: LinkLife, now: float) -> None:
        """Handle a response to CONFIRM RKEY."""
        self._isSilent = False
        for flow in self._flows:
            if not flow.isDeletion and flow.carrier is link and flow.asked == (body.rkey,):
                self._ended(flow, not one.header.flags & LLCFlags.NEGATIVE, now)
                return

    def deleted(self, body: DeleteRKey, link: LinkLife, now: float) -> None:
        """Handle a response to DELETE RKEY; without keys (Linux, version 2) it is for the oldest request."""
        # Peers answer in order, so the answer to a later request is that of the earlier ones as well.
        flows = [flow for flow in self._flows if flow.isDeletion and flow.carrier is link]
        answered = [at for at, flow in enumerate(flows) if flow.asked == body.rkeys[: len(flow.asked)]]
        for flow in flows[: answered[0] + 1 if answered else 1]:
            self._ended(flow, True, now)

    def expired(self, now: float) -> None:
        """End overdue requests; a buffer to delete is retained until the peer has confirmed that."""
        for flow in [flow for flow in self._flows if flow.until <= now and not flow.isOverdue]:
            if flow.isDeletion:
                flow.isOverdue = True
            else:
                self._isSilent = True
                self._ended(flow, False, now)
        overdue = [flow for flow in self._flows if flow.isOverdue]
        for flow in overdue[: max(0, len(overdue) - MOST_OVERDUE)]:
            self._ended(flow, False, now)
        self.next(now)

    def next(self, now: float) -> None:
        """Send waiting requests, as far as the window allows; none while a link is being added."""
        core = self._core
        while self._waiting and len(self.untils) < core.window and core.state == "active":
            if self._links.isAdding:
                return
            flow = self._waiting.popleft()
            timing = core.timing
            # Connections wait for CONFIRM RKEY, so a peer that left the last one unanswered gets less time.
            isPatient = not (flow.isDeletion or self._isSilent)
            flow.until = now + (timing.confirmRKey if isPatient else timing.response)
            flow.carrier = carrier = core.carrier
            self._flows.append(flow)
            if flow.isDeletion:
                flow.asked = tuple(carrier.localTokens.get(name, Token(name, 0)).rkey for name in flow.rkeys)
                rest = (RKey(0),) * (KEYS_AT_ONCE - len(flow.asked))
                core.ask(DeleteRKey(count=len(flow.asked), rkeys=flow.asked + rest), 0, carrier)
            else:
                self._askRKey(flow, carrier)

    def _askRKey(self, flow: _Flow, carrier: LinkLife) -> None:
        """Send CONFIRM RKEY with the buffer's keys on all links, by continuations if necessary."""
        name = flow.rkeys[0]
        flow.informed = [link for link in self._core.active if name in link.localTokens]
        rkey, address = carrier.localTokens.get(name, Token(name, 0))
        flow.asked = (rkey,)
        others = [
            LinkRKey(link=link.number, rkey=token.rkey, address=token.address)
            for link in flow.informed
            for token in (link.localTokens[name],)
            if link is not carrier
        ]
        here, more = _filled(others[:2], 2), others[2:]
        body = ConfirmRKey(others=len(others), rkey=rkey, address=address, onLinks=here)
        self._core.ask(body, 0, carrier)
        while more:
            rest = ConfirmRKeyContinuation(remaining=len(more), onLinks=_filled(more[:3], 3))
            self._core.ask(rest, 0, carrier)
            more = more[3:]

    def _ended(self, flow: _Flow, well: bool, now: float) -> None:
        self._flows.remove(flow)
        name = flow.rkeys[0]
        if (
            well
            and not flow.isDeletion
            and any(name in link.localTokens and link not in flow.informed for link in self._core.links)
        ):
            self._waiting.appendleft(flow)  # a link was added meanwhile, whose key the peer does not know
        else:
            self._report(flow, well)
        self.next(now)

    def _report(self, flow: _Flow, well: bool) -> None:
        if flow.isDeletion:
            for link in self._core.links:
                for name in flow.rkeys:
                    link.localTokens.pop(name, None)
            self._core.pending.append(RKeysDeleted(flow.rkeys))
        elif well:
            self._core.known.add(flow.rkeys[0])
            self._core.pending.append(RKeyConfirmed(flow.rkeys[0]))
        else:
            self._core.pending.append(RKeyRefused(flow.rkeys[0]))

    def abandon(self) -> None:
        """Refuse all pending requests, because the group has ended."""
        for flow in (*self._flows, *self._waiting):
            self._report(flow, False)
        self._flows.clear()
        self._waiting.clear()


def _filled(keys: Sequence[LinkRKey], count: int) -> tuple[LinkRKey, ...]:
    """Pad a message's list of keys with zeros."""
    return (*keys, *[LinkRKey()] * (count - len(keys)))
