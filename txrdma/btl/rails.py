"""
The rails of a connection: the modules that reach the same peer, and striping over several of them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from functools import cached_property
from secrets import randbits, token_bytes
from typing import Any, Final

from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from txrdma.btl.core.events import Event, MessageReceived, PackReceived, ProbeReceived, SendCompleted
from txrdma.btl.core.matching import Interface, speedOf
from txrdma.btl.core.module import NONCE_LENGTH
from txrdma.btl.core.peer import OPEN, Peer
from txrdma.btl.core.stripes import Event as StripesEvent
from txrdma.btl.core.stripes import Piece, Stripes
from txrdma.btl.errors import PeerLost
from txrdma.btl.introductions import Introduction
from txrdma.btl.module import ModulePort, Program
from txrdma.error import DeviceUnavailable, PeerViolation, WireError
from txrdma.iba.types import GID
from txrdma.iba.verbs import Buffer
from txrdma.ports.netlink import interfaceWith
from txrdma.ports.network import HostNetwork

_log = Logger()

SMALL: Final = "small"
"""The first probe of a rail; its echo proves the peer's address."""

SMALL_LENGTH: Final = 64
"""Bytes of the small probe."""

FULL_SIZE: Final = "full-size"
"""The second probe of a rail, as long as the MTU allows. It is sent only to a validated address."""

STRIPE: Final = 0xFFFF
"""The tag of all pieces: the only tag of a connection with several rails."""

_USUAL_PREFIXES: Final = (64, 24)


class Rail:
    """
    A module of a connection.

    @ivar introduction: the introduction of the module, as sent to the peer.
    @ivar peer: the module's peer, after both introductions.
    @ivar release: releases the module.
    @ivar missing: probes that are not echoed yet, with their nonces.
    """

    peer: Peer

    def __init__(self, module: ModulePort, interfaces: int) -> None:
        """
        @param interfaces: number of interfaces to announce.
        """
        self.module = module
        self.release = module.hold()
        self.introduction = Introduction.of(module.place, module.newName(), randbits(16), interfaces)
        self.missing = {SMALL: token_bytes(NONCE_LENGTH), FULL_SIZE: token_bytes(NONCE_LENGTH)}

    @cached_property
    def interface(self) -> Interface:
        """Return the interface of the module, as announced to the peer."""
        gid = self.module.place.gid
        return Interface(gid, _prefixLength(gid), self.module.device.portAttributes(1).rate)

    def meet(self, introduction: Introduction, program: Program, allowance: int) -> None:
        """
        Add the peer to the module.

        @param allowance: bytes that may be sent before its address is validated.
        @raise txrdma.error.InvalidRequest: there is no route to the peer.
        """
        mine = self.introduction
        self.peer = self.module.addPeer(
            mine.name,
            introduction.name,
            introduction.place,
            (mine.sequence, introduction.sequence),
            program,
            allowance,
        )

    def probe(self, which: str) -> None:
        """Send a probe: L{SMALL} or L{FULL_SIZE}."""
        size = SMALL_LENGTH if which == SMALL else self.peer.mtu
        self.module.core.probe(self.peer, size, self.missing[which])
        self.module.soon()

    def echoed(self, nonce: bytes) -> bool:
        """
        Process a nonce that the peer has echoed.

        The nonce of the small probe validates the peer's address; then the full-size probe is sent.

        @return: False if this rail does not wait for this nonce.
        """
        which = next(iter(self.missing), None)
        if which is None or self.missing[which] != nonce:
            return False
        del self.missing[which]
        if which == SMALL:
            self.module.core.prove(self.peer)
            self.probe(FULL_SIZE)
        return True

    def lose(self) -> None:
        """Lose the peer, if it was added."""
        if hasattr(self, "peer"):
            self.module.core.lose(self.peer, "the connection has ended")

    def forget(self) -> None:
        """Remove the peer, if it was added, and release the module."""
        if hasattr(self, "peer"):
            self.module.forget(self.peer)
            self.module.turn()  # report failures before the end
        self.release()


def _prefixLength(gid: GID) -> int:
    """Return the prefix length of an address of this host, in bits; a usual one if it is unknown."""
    usual = _USUAL_PREFIXES[gid.isMapped]
    if gid.ip is None:
        return usual
    try:
        network = HostNetwork.open()
    except DeviceUnavailable:
        return usual
    try:
        found = interfaceWith(gid.ip, network.interfaces())
    except (DeviceUnavailable, WireError):
        return usual
    finally:
        network.close()
    for address in () if found is None else found.addresses:
        if ipaddress.ip_address(address.ip) == ipaddress.ip_address(gid.ip):
            return address.prefixLength
    return usual


class _Lane:
    """The user of one of the modules."""

    __slots__ = ("_bundle", "_number")

    def __init__(self, bundle: MultiRailPeer, number: int) -> None:
        self._bundle, self._number = bundle, number

    def happened(self, event: Event) -> None:
        """Handle an event of the module."""
        self._bundle.happened(self._number, event)

    def turnEnded(self) -> None:
        """Called after all events of a reactor turn have been reported."""
        self._bundle.turn()


class MultiRailPeer:
    """
    One peer that is reached over several rails.

    @ivar peer: the peer as its user sees it.
    """

    def __init__(
        self,
        reactor: Any,
        rails: Sequence[Rail],
        remote: Sequence[Interface],
        notify: Callable[[StripesEvent], None],
        turned: Callable[[], None],
        failed: Callable[[Exception], None],
        echo: Callable[[bytes], None],
    ) -> None:
        """
        @param remote: the peer's interface for each rail.
        @param notify: called with each event of the stripes; C{turned}: called after all events of a reactor
            iteration.
        @param failed: called when all rails are lost, or the peer breaks the rules.
        @param echo: called with the nonce of each received probe.
        """
        self._reactor, self._rails = reactor, rails
        self._notify, self._turned, self._failed = notify, turned, failed
        self._echo = echo
        speeds = [speedOf(rail.interface, interface) for rail, interface in zip(rails, remote, strict=True)]
        self.peer = Stripes(speeds, self._write, rails[0].module.stripesBudget)
        self._later: IDelayedCall | None = None
        self._timer: IDelayedCall | None = None
        self._isClosed = self._isBusy = False

    def met(self) -> None:
        """Connect the modules' peers: no module loses the peer while another one receives from it."""
        peers = [rail.peer for rail in self._rails]
        for peer in peers:
            peer.others = tuple(other for other in peers if other is not peer)
            peer.order.isOrdered = False  # the stripes order messages

    def program(self, number: int) -> Program:
        """Return the user of a rail's module."""
        return _Lane(self, number)

    def _write(self, region: int, at: int, data: Buffer) -> bool:
        memory = self._rails[0].module.core.regions.find(region, self.peer)
        if memory is None or at + len(data) > len(memory):
            return False
        memory[at : at + len(data)] = data
        return True

    def soon(self) -> None:
        """Call L{turn} at the end of this reactor iteration."""
        if self._later is None and not (self._isClosed or self._isBusy):
            self._later = self._reactor.callLater(0, self._laterTurn)

    def happened(self, number: int, event: Event) -> None:
        """Handle an event of a rail's module."""
        if self._isClosed:
            return
        if isinstance(event, PackReceived):
            for _tag, data in event.messages:
                self._received(data)
            self._report()  # while the bytes are valid
        elif isinstance(event, MessageReceived):
            self._received(event.data)
            self._report()
        elif isinstance(event, SendCompleted):
            if isinstance(event.context, Piece):
                self.peer.arrived(number, event.context, self._reactor.seconds())
        elif isinstance(event, ProbeReceived):
            self._echo(event.nonce)
        else:  # rails are not closed or refused separately, so any such event means that this rail is lost
            self._lost(number)

    def _received(self, data: memoryview) -> None:
        if self._isClosed:  # closed by an earlier message of the same packet
            return
        try:
            self.peer.received(data)
        except (PeerViolation, WireError) as error:
            self._failed(error)

    def _lost(self, number: int) -> None:
        if self.peer.isLost(number):
            return
        rail = self._rails[number]
        _log.warn(
            "a connection continues without {interface}, on which its peer does not answer",
            interface=rail.module.interface,
        )
        if not self.peer.lost(number):
            self._failed(PeerLost("the peer answers by none of its interfaces"))

    def _report(self) -> None:
        while not self._isClosed and (events := self.peer.events()):
            for event in events:
                self._notify(event)

    def turn(self) -> None:
        """Report events, pass pieces to modules that can send, and schedule the next deadline."""
        if self._isBusy or self._isClosed:
            return
        self._isBusy = True
        self.peer.settle()
        try:
            self._report()
            if not self._isClosed:
                self._turned()
            if not self._isClosed:
                self._report()
                self._send()
        finally:
            self._isBusy = False
        self._schedule()

    def _send(self) -> None:
        while not self._isClosed and (pieces := self.peer.outgoing(self._reactor.seconds())):
            for number, piece in pieces:
                rail = self._rails[number]
                if rail.peer.state == OPEN:
                    rail.module.core.send(rail.peer, STRIPE, piece.encode(), piece)
                    rail.module.soon()
                else:
                    self._lost(number)  # other rails send its pieces, in the next round of this loop

    def _laterTurn(self) -> None:
        self._later = None
        self.turn()

    def _schedule(self) -> None:
        deadline, timer = self.peer.deadline(), self._timer
        if deadline is None or self._isClosed:
            return
        wait = max(0.0, deadline - self._reactor.seconds())
        if timer is None or not timer.active():
            self._timer = self._reactor.callLater(wait, self._expired)
        elif timer.getTime() > deadline:
            timer.reset(wait)

    def _expired(self) -> None:
        """Process received packets first: after a busy time, the reactor runs late calls before it reads."""
        self._timer = None
        self.poll()
        if self._isClosed:
            return
        for number in self.peer.expired(self._reactor.seconds()):
            _log.info(
                "nothing is acknowledged on {interface}: its packets are repeated on other interfaces",
                interface=self._rails[number].module.interface,
            )
        self.turn()
        self._schedule()

    def poll(self) -> None:
        """Process all received packets, on all rails."""
        for rail in self._rails:
            rail.module.poll()

    def close(self) -> None:
        """Stop sending and receiving; packets of the peer are no longer acknowledged."""
        if self._isClosed:
            return
        self._isClosed = True
        self.peer.discard()
        for rail in self._rails:
            rail.lose()
        for call in (self._later, self._timer):
            if call is not None and call.active():
                call.cancel()
        self._later = self._timer = None
