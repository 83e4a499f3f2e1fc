"""
The network interfaces of this host, for the ports of a software device.

All queries use sockets that are opened together with the device, so that a device in another network
namespace sees the interfaces of that namespace.
"""

from __future__ import annotations

import array
import fcntl
import socket
import struct
from collections.abc import Callable
from contextlib import ExitStack
from time import monotonic
from typing import cast, Final

from twisted.logger import Logger

from txrdma.error import DeviceUnavailable
from txrdma.kit.logs import errorText
from txrdma.ports.netlink import NetworkInterface
from txrdma.ports.network import HostNetwork, INetworkReactor

_log = Logger()

_SIOCETHTOOL: Final = 0x8946
_GET_SETTINGS: Final = 1
_SETTINGS: Final = struct.Struct("=I8xH14xH14x")  # struct ethtool_cmd: what, the speed, its upper half
_REQUEST: Final = struct.Struct("@16sP16x")
_UNKNOWN: Final = 0xFFFFFFFF

_RECENT_SECONDS: Final = 0.01
"""
Lifetime of a cached interface, shorter than the delay of reports of changes: opening a device needs it often.
"""


class HostInterfaces:
    """The network interfaces of the creating thread's network namespace; on Linux only."""

    def __init__(self) -> None:
        """@raise DeviceUnavailable: interfaces can't be read."""
        self._watching: Callable[[], Callable[[], None]] | None = None
        self._unwatch: Callable[[], None] | None = None
        self._recent: dict[str, tuple[float, NetworkInterface | None]] = {}  # by address of the device
        with ExitStack() as undo:
            try:
                self._network = HostNetwork.open()
                undo.callback(self._network.close)
                self._network.interfaceOf("127.0.0.1")  # may not be permitted
                self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            except OSError as error:
                raise DeviceUnavailable(f"network interfaces can't be read: {error}") from error
            undo.pop_all()

    def interfaceOf(self, address: str) -> NetworkInterface | None:
        """
        Return the interface that has this IP address; None if there is none, or the address is not usable.

        @raise DeviceUnavailable: the kernel does not answer.
        """
        now = monotonic()
        readAt, found = self._recent.get(address, (-_RECENT_SECONDS, None))
        if not 0 <= now - readAt < _RECENT_SECONDS:
            found = self._network.interfaceOf(address)
            if found is not None:
                ip = address.partition("%")[0]
                if any(own.ip == ip and not own.isUsable for own in found.addresses):
                    found = None
            self._recent[address] = now, found
        return found

    def rate(self, name: str) -> int:
        """Return the rate of an interface's link, in bits per second; 0 if unknown."""
        settings = array.array("B", _SETTINGS.pack(_GET_SETTINGS, 0, 0))
        where, _ = settings.buffer_info()
        try:
            fcntl.ioctl(self._socket, _SIOCETHTOOL, _REQUEST.pack(name.encode(), where))
        except (OSError, ValueError):
            return 0  # a link without one, such as the loopback's; or the socket is closed
        _, low, high = _SETTINGS.unpack(settings)
        megabits = high << 16 | low
        return 0 if megabits == _UNKNOWN else megabits * 1_000_000

    def watch(self, reactor: object, changed: Callable[[], None]) -> None:
        """Call C{changed} shortly after any of them has changed, until C{close}."""
        self._watching = lambda: self._network.watch(cast(INetworkReactor, reactor), changed)
        self.wake()

    def rest(self) -> None:
        """Stop watching until L{wake}."""
        unwatch, self._unwatch = self._unwatch, None
        if unwatch is not None:
            unwatch()

    def wake(self) -> None:
        """Watch the interfaces for changes. Idempotent."""
        if self._unwatch is not None:
            self._network.addReaders()
        elif self._watching is not None:
            try:
                self._unwatch = self._watching()
            except DeviceUnavailable as error:
                _log.warn(
                    "changes of network interfaces will not be noticed, since they can't be watched: {error}",
                    error=errorText(error),
                )

    def close(self) -> None:
        self._watching = None
        self._socket.close()
        self._network.close()


def openHostInterfaces() -> HostInterfaces | None:
    """Open the network interfaces of this host; return None if they can't be read."""
    try:
        return HostInterfaces()
    except DeviceUnavailable as error:
        _log.debug("the network interfaces of this host can't be read: {error}", error=errorText(error))
        return None
