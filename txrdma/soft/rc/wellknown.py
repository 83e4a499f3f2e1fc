"""
RoCE's UDP port 4791, for peers that do not know a software device's own port.

A device sends from its own port only. Its socket at port 4791, which devices of several processes share
(L{txrdma.soft.host}), is opened on first use: for queue pair 1 and datagrams, and for peers of other kinds.
So connections between software devices that know each other's ports do not depend on other processes.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from txrdma.error import DeviceUnavailable, ResourceExhausted
from txrdma.iba.headers import Opcode
from txrdma.iba.pcap import RoCECapture
from txrdma.iba.types import MTU, QPN, ROCE_PORT
from txrdma.iba.verbs import QPKind
from txrdma.kit.logs import errorText
from txrdma.soft.core.netdev import udpPort
from txrdma.soft.core.queuepair import SoftQueuePair
from txrdma.soft.core.route import Route
from txrdma.soft.host.member import PortMember
from txrdma.soft.rc._packets import heading, Outgoing
from txrdma.soft.rc.peers import PortRoute, UDPPeer
from txrdma.soft.rc.roce import RoCEPort
from txrdma.soft.rc.udp import DatagramCarrier, UDPCarrier, udpSocket
from txrdma.soft.shared.datagrams import SharedDatagrams
from txrdma.unix.sockets import Reactor

_log = Logger()

_GSI: Final = QPN(1)


class WellKnownPort(RoCEPort):
    """
    Port 4791 of an address: receives packets for the routes of a device's own port.

    @ivar member: this device among those that share the port.
    """

    def __init__(
        self, clock: IReactorTime, carrier: UDPCarrier, member: PortMember, home: SharingPort
    ) -> None:
        super().__init__(clock, carrier, home._capture)
        self.member = member
        self.counters, self._routes = home.counters, home._routes
        self.isEnabled = home.isEnabled
        self._udp = carrier
        member.start(self.sendProbe, self.forwarded)

    def forwarded(self, source: tuple[str, int], packet: memoryview) -> None:
        """Process a packet that another device at this address has received."""
        peer = self.localPeerAt(source)
        if peer is not None:
            self.packetReceived(packet, peer, self.seconds())
            self.batchEnded()

    def sendProbe(self, payload: bytes) -> None:
        """Send a packet to queue pair 0 of this address and UDP port."""
        peer = self.peerNamed(self.address, self.port)
        if peer is not None:
            opcode, length = int(Opcode.UD_SEND_ONLY), len(payload)
            self.emitNow(
                peer, heading(QPN(0)), Outgoing(opcode, 0, 1, b"", memoryview(payload), length, False, False)
            )

    def fail(self, route: PortRoute) -> None:
        route.port.fail(route)

    def setReading(self, isReading: bool) -> None:
        """Leave or rejoin the reactor."""
        self._udp.setReading(isReading)
        (self.member.wake if isReading else self.member.rest)()

    def drive(self) -> bool:
        """Receive packets, including forwarded ones, after the reactor has ended."""
        self._udp.poll()
        self.member.receiveNow()
        return False

    def close(self) -> None:
        super().close()
        self.member.close()

    def _dispatch(
        self, head: int, data: memoryview, stride: int, count: int, peer: UDPPeer, now: float
    ) -> None:
        """Pass a run of packets to its route, or those of another device to that device."""
        number = QPN(head & 0xFFFFFF)
        if number > _GSI and number in self._routes:
            super()._dispatch(head, data, stride, count, peer, now)
            return
        for offset in range(0, len(data), stride):
            packet = data[offset : offset + stride]
            if not self.member.redirect(number, packet, (peer.ip, peer.port)):
                super()._dispatch(head, packet, stride, 1, peer, now)


class SharingPort(RoCEPort):
    """The RoCE port of a device that shares port 4791 with others, which it joins on first use."""

    def __init__(
        self,
        reactor: Reactor,
        carrier: DatagramCarrier,
        address: str,
        share: int,
        capture: RoCECapture | None = None,
        longestDatagram: int = MTU.MTU_4096.bytes,
        lanes: SharedDatagrams | None = None,
    ) -> None:
        """
        @param address: address of the carrier, a link-local one with its zone.
        @param share: upper 8 bits of the device's queue pair numbers.
        """
        self.wellKnown: WellKnownPort | None = None
        self._reactor = reactor
        self._zonedAddress, self._share = address, share
        # A device belongs to the network namespace in which it was opened, which the process may leave.
        with ExitStack() as undo:
            self._unbound: socket.socket | None = undo.enter_context(udpSocket(address))
            super().__init__(reactor, carrier, capture, longestDatagram, lanes)
            undo.pop_all()

    def _join(self) -> WellKnownPort:
        """
        Open port 4791.

        @raise DeviceUnavailable: another program has it, or there are no UNIX sockets to share it.
        """
        if self.wellKnown is None:
            with ExitStack() as undo:
                shared, self._unbound = self._unbound or udpSocket(self._zonedAddress), None
                carrier = UDPCarrier(self._reactor, self._zonedAddress, ROCE_PORT, shared=shared)
                undo.callback(carrier.close)
                member = PortMember(self._reactor, self.address, self._share, carrier.bound)
                undo.callback(member.close)
                self.wellKnown = WellKnownPort(self._reactor, carrier, member, self)
                undo.pop_all()
        return self.wellKnown

    # RoutePort

    def connect(self, owner: SoftQueuePair) -> Route | None:
        isDatagrams = owner.kind is QPKind.UD
        addresses = owner.attributes.address, owner.attributes.alternateAddress
        if isDatagrams or any(each is not None and udpPort(each) == ROCE_PORT for each in addresses):
            try:
                self._join()
            except DeviceUnavailable as error:
                if owner.number == _GSI:
                    reason = f"UDP port {ROCE_PORT} of {self.address} is not available ({error})"
                    raise ResourceExhausted(
                        f"{reason}: programs of one user share it, by UNIX sockets; those of another user "
                        "need another address"
                    ) from error
                if not isDatagrams:
                    raise
                _log.info("only software devices reach {port!r}: {error}", port=self, error=errorText(error))
        return super().connect(owner)

    def claimService(self, serviceID: int) -> Callable[[], None]:
        return (lambda: None) if self.wellKnown is None else self.wellKnown.member.claim(serviceID)

    def rest(self) -> None:
        if self.wellKnown is not None:
            self.wellKnown.setReading(False)

    def wake(self) -> None:
        if self.wellKnown is not None:
            self.wellKnown.setReading(True)

    def drive(self) -> bool:
        if self.wellKnown is not None:
            self.wellKnown.drive()
        return super().drive()

    def setEnabled(self, isEnabled: bool) -> None:
        super().setEnabled(isEnabled)
        if self.wellKnown is not None:
            self.wellKnown.setEnabled(isEnabled)

    def close(self) -> None:
        if self.wellKnown is not None:
            self.wellKnown.close()
        if self._unbound is not None:
            self._unbound.close()
            self._unbound = None
        super().close()

    # For routes

    def _pollSockets(self) -> None:
        super()._pollSockets()
        if self.wellKnown is not None:
            self.wellKnown.poll()

    def register(self, route: PortRoute) -> None:
        super().register(route)
        if route.number == _GSI and self.wellKnown is not None:
            self.wellKnown.member.setReceiving(True)

    def forget(self, route: PortRoute) -> None:
        super().forget(route)
        if route.number == _GSI and self.wellKnown is not None:
            self.wellKnown.member.setReceiving(False)
