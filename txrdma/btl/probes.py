"""
Probes of the paths of a connection, and the interfaces that it may use.

On each path both ends send two probes, which contain nonces. The nonce of the small one, returned over the
lifeline, validates the peer's address on this path; then the full-size probe is sent, which has the largest
MTU of IBA that both ports accept.

Software devices accept datagrams as long as their interfaces' MTU allows. When both probes have passed, an
optional one of that length is sent; when its nonce is returned, the path has this MTU (RFC 8899). A path that
drops it, for example a tunnel, keeps the MTU of IBA.
"""

from __future__ import annotations

import ipaddress
from secrets import token_bytes
from typing import Final

from txrdma.btl.core.matching import Interface
from txrdma.btl.core.module import NONCE_LENGTH
from txrdma.btl.core.peer import OPEN, Peer
from txrdma.btl.module import DevicePort, ModulePort
from txrdma.error import DeviceUnavailable, WireError
from txrdma.iba.types import GID
from txrdma.ports.netlink import interfaceWith
from txrdma.ports.network import HostNetwork

SMALL: Final = "small"
"""The first probe of a path; its echo proves the peer's address."""

SMALL_LENGTH: Final = 64
"""Bytes of the small probe."""

FULL_SIZE: Final = "full-size"
"""The second probe of a path, as long as the MTU allows. It is sent only to a validated address."""

MOST_TRIES: Final = 3
"""Number of optional probes on a path of which none is returned before the path keeps its MTU."""

_USUAL_PREFIXES: Final = (64, 24)


class PathProbes:
    """
    The probes of one path.

    @ivar number: number of the path; C{port}: its port.
    @ivar missing: probes that are not echoed yet, with their nonces.
    @ivar mtu: longest packet that the path is known to carry, when nothing is missing.
    """

    def __init__(self, module: ModulePort, peer: Peer, number: int, longest: int) -> None:
        """
        @param longest: longest packet that both ports accept, in bytes.
        """
        self.number, self.port, self.mtu = number, module.ports[peer.ports[number]], peer.mtu
        self._longest, self._longer, self._tries = longest, token_bytes(NONCE_LENGTH), 0
        self.missing = {SMALL: token_bytes(NONCE_LENGTH), FULL_SIZE: token_bytes(NONCE_LENGTH)}
        self._module, self._peer = module, peer

    def send(self, which: str) -> None:
        """Send a probe: L{SMALL} or L{FULL_SIZE}."""
        length = SMALL_LENGTH if which == SMALL else self._peer.mtu
        self._module.core.probe(self._peer, length, self.missing[which], self.number)
        self._module.soon()

    def sendLonger(self, error: Exception | None = None) -> None:
        """
        Send an optional probe. Called again when the last one was acknowledged, or replaced because it was
        lost.
        """
        if self.mtu < self._longest and self._tries < MOST_TRIES and self._peer.state == OPEN:
            self._tries += 1
            self._module.core.probe(self._peer, self._longest, self._longer, self.number, self.sendLonger)
            self._module.soon()

    def echoed(self, nonce: bytes) -> bool:
        """
        Process a nonce that the peer has echoed.

        @return: False if this path does not wait for this nonce, or the probe was an optional one.
        """
        if nonce == self._longer and self._tries:
            self.mtu = self._longest
            return False
        which = next(iter(self.missing), None)
        if which is None or self.missing[which] != nonce:
            return False
        del self.missing[which]
        if which == SMALL:
            self._module.core.prove(self._peer, self.number)
            self.send(FULL_SIZE)
        return True


def interfaceOf(port: DevicePort) -> Interface:
    """Return the interface of a port, as announced to a peer."""
    gid = port.place.gid
    return Interface(gid, _prefixLength(gid), port.device.portAttributes(1).rate)


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
