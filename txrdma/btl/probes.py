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
from collections.abc import Callable, Hashable, Sequence
from secrets import token_bytes
from typing import Final

from txrdma.btl.core.matching import Interface
from txrdma.btl.core.module import NONCE_LENGTH
from txrdma.btl.core.peer import OPEN, Peer
from txrdma.btl.errors import Unreachable
from txrdma.btl.module import ChannelPort, ModulePort
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

PROBES: Final = 2
"""Probes on each path that must be echoed before the connection is established."""

MOST_ECHOES: Final = PROBES + MOST_TRIES
"""Probes on each path that are echoed; further ones are not."""

_USUAL_PREFIXES: Final = (64, 24)


class PathProbes:
    """
    The probes of one path.

    @ivar number: number of the path; C{port}: its port.
    @ivar missing: probes that are not echoed yet, with their nonces.
    @ivar mtu: longest packet that the path is known to carry, if no probe is missing.
    """

    def __init__(self, module: ModulePort, peer: Peer, number: int, longest: int) -> None:
        """@param longest: longest packet that both ports accept, in bytes."""
        self.number, self.port, self.mtu = number, module.ports[peer.ports[number]], peer.mtu
        self._longest, self._longer, self._tries = longest, token_bytes(NONCE_LENGTH), 0
        self.missing = {SMALL: token_bytes(NONCE_LENGTH), FULL_SIZE: token_bytes(NONCE_LENGTH)}
        self._module, self._peer = module, peer

    def send(self, which: str) -> None:
        """Send a probe: L{SMALL} or L{FULL_SIZE}."""
        length = SMALL_LENGTH if which == SMALL else self._peer.mtu
        self._module.core.probe(self._peer, length, self.missing[which], self.number)
        self._module.turnLater()

    def sendLonger(self, error: Exception | None = None) -> None:
        """
        Send an optional probe. Called again when the last one was acknowledged, or replaced because it was
        lost.
        """
        if self.mtu < self._longest and self._tries < MOST_TRIES and self._peer.state == OPEN:
            self._tries += 1
            self._module.core.probe(self._peer, self._longest, self._longer, self.number, self.sendLonger)
            self._module.turnLater()

    def echoed(self, nonce: bytes) -> bool:
        """
        Process a nonce that the peer has echoed.

        @return: False if this path does not wait for this nonce, or if the probe was optional.
        """
        if nonce == self._longer and self._tries:
            self.mtu = self._longest
            return False
        which = next(iter(self.missing), None)
        if which is None or self.missing[which] != nonce:
            return False
        del self.missing[which]
        if which == SMALL:
            self._module.core.validate(self._peer, self.number)
            self.send(FULL_SIZE)
        return True


class PathValidation:
    """
    The probes of both ends on all paths of a connection.

    @ivar isProven: whether the peer has echoed the required probes of this end.
    @ivar hasEchoed: whether this end has echoed as many of the peer's as it requires.
    """

    def __init__(
        self, module: ModulePort, peer: Peer, longest: Sequence[int], echo: Callable[[bytes], None]
    ) -> None:
        """
        @param longest: for each path, longest packet that both of its ports accept, in bytes.
        @param echo: returns the nonce of a probe to the peer.
        """
        self._peer, self._echo, self._echoes = peer, echo, 0
        self._paths = [PathProbes(module, peer, number, most) for number, most in enumerate(longest)]

    def start(self) -> None:
        for path in self._paths:
            path.send(SMALL)

    @property
    def isProven(self) -> bool:
        return not any(path.missing for path in self._paths)

    @property
    def hasEchoed(self) -> bool:
        return self._echoes >= PROBES * len(self._paths)

    def received(self, nonce: bytes) -> bool:
        """
        Echo the nonce of the peer's probe, unless it has sent too many.

        @return: whether this was the last one that the peer requires.
        """
        if self._echoes >= MOST_ECHOES * len(self._paths):
            return False
        self._echoes += 1
        self._echo(nonce)
        return self._echoes == PROBES * len(self._paths)

    def echoed(self, nonce: bytes) -> bool:
        """
        Process a nonce that the peer has echoed, and set the MTU of the connection.

        @return: whether this was the last required one; optional probes are sent then.
        """
        isLast = any(path.echoed(nonce) for path in self._paths) and self.isProven
        if isLast:
            for path in self._paths:
                path.sendLonger()
        self._peer.mtu = min(path.mtu for path in self._paths)
        return isLast

    def failure(self, peerHost: str) -> Unreachable:
        """
        Return the error of probes that take too long.

        @param peerHost: address of the peer, for the message if there is only one path.
        """
        path = next((each for each in self._paths if each.missing), None)
        if path is None:
            return Unreachable("this end's packets pass, but the peer is not ready: its packets may not pass")
        place, mtu = path.port.address, self._peer.mtu
        if len(self._paths) > 1:
            peerHost = _ipOf(self._peer.addresses[2 * self._peer.ports[path.number]])
        route = f"{path.port.interface} ({place.gid.ip or place.gid}) to {peerHost}"
        if SMALL in path.missing:
            return Unreachable(f"no packet passes from {route}: of {SMALL_LENGTH} bytes or of {mtu}, its MTU")
        return Unreachable(
            f"packets of {mtu} bytes, the MTU, do not pass from {route}, while small ones do: "
            f"choose a smaller MTU, as with the device string soft:{place.gid.ip}:mtu=1024"
        )


def _ipOf(source: Hashable) -> str:
    """Return the IP address of a peer's channel."""
    assert isinstance(source, tuple)
    raw: bytes = source[0]
    return str(ipaddress.ip_address(raw))


def interfaceOf(port: ChannelPort) -> Interface:
    """Return the interface of a port, as announced to a peer."""
    gid = port.address.gid
    return Interface(gid, _prefixLength(gid), port.device.portAttributes(port.portNumber).rate)


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
