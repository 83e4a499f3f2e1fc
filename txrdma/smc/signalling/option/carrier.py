"""
The C{option} carrier: adds SMC's TCP option to sockets of this process, as the Linux kernel does for AF_SMC.

See RFC 7609, 3.1. A process marks a socket before it connects or listens, and checks afterwards whether the
peer sent the option as well: only then both ends continue with CLC. Other sockets are not affected.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from pathlib import Path
from typing import Final

from txrdma.error import InvalidRequest
from txrdma.smc.signalling.option.bpf import BPFMap
from txrdma.smc.signalling.option.filesystems import processCgroup
from txrdma.smc.signalling.option.program import load, LoadedProgram, NOTICED, SEEN, STORAGE_BYTES, WANTED
from txrdma.smc.signalling.option.reasons import (
    effectiveCapabilities,
    explained,
    missingCapabilities,
    OptionUnavailable,
)

PINS: Final = Path("/run/txrdma-smc-option")
"""The directory in which C{txrdma smc-option install} pins the program's objects for other processes."""

SOCKETS: Final = "sockets"
"""Name in that directory of the map with the flags of sockets."""

SAVE_SYN: Final = 27
SAVED_SYN: Final = 28
"""Socket options of C{linux/tcp.h} (see tcp(7), C{TCP_SAVE_SYN}) that L{socket} does not name."""

_MAX_SYN: Final = 512
"""Bytes of headers to read: up to 60 of IPv4 and 60 of TCP; IPv6 has no limit."""

_IP_FREEBIND: Final = 15
_MARK: Final = WANTED.to_bytes(STORAGE_BYTES, sys.byteorder)


def takeSYN(accepted: socket.socket) -> bytes:
    """Take the IP and TCP headers of a connection's SYN, which the kernel returns once, or nothing."""
    try:
        return accepted.getsockopt(socket.IPPROTO_TCP, SAVED_SYN, _MAX_SYN)
    except OSError:  # EINVAL: longer than the buffer; ENOPROTOOPT, ENOTCONN: not a TCP connection
        return b""


class OptionCarrier:
    """Marks sockets, and reads the program's flags; C{why}: the reason if that is impossible."""

    def __init__(self, sockets: BPFMap | None, loaded: LoadedProgram | None = None, why: str = "") -> None:
        """@param sockets: map with the flags of sockets; it is closed with the carrier, like C{loaded}."""
        self._sockets = sockets
        self._loaded = loaded
        self.why = why

    @property
    def isAvailable(self) -> bool:
        return self._sockets is not None

    def markBeforeConnect(self, client: socket.socket) -> None:
        """Add the option to the SYN of an unconnected socket; raises L{OptionUnavailable}."""
        self._mark(client, "mark a socket for the TCP option")

    def markBeforeListen(self, listener: socket.socket) -> None:
        """Add the option to the SYN-ACKs of a future listener; raises L{OptionUnavailable}."""
        self._mark(listener, "mark a listening socket", isListener=True)

    def peerHasOption(self, connected: socket.socket) -> bool:
        """Return whether both ends of a connection have sent the option; raises L{OptionUnavailable}."""
        sockets = self._requireMap()
        try:
            flags = int.from_bytes(sockets.get(connected.fileno(), STORAGE_BYTES), sys.byteorder)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return False
            raise explained(error, "read the flags of a socket") from error
        return bool(flags & SEEN)

    def forget(self, connected: socket.socket) -> None:
        """
        Free the flags of a connection, or an unused mark, before the socket is closed.

        @raise InvalidRequest: the socket listens.
        @raise OptionUnavailable: the flags can't be removed.
        """
        sockets = self._requireMap()
        if connected.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise InvalidRequest("a listening socket answers with the TCP option until it is closed")
        takeSYN(connected)
        try:
            sockets.delete(connected.fileno())
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise explained(error, "remove the flags of a socket") from error

    def close(self) -> None:
        sockets, self._sockets = self._sockets, None
        loaded, self._loaded = self._loaded, None
        self.why = self.why or "the carrier is closed"
        for each in (sockets, loaded):
            if each is not None:
                each.close()

    def _mark(self, unused: socket.socket, action: str, isListener: bool = False) -> None:
        sockets = self._requireMap()
        try:
            if isListener:  # the program finds the peer's option in the SYN that the kernel saves
                unused.setsockopt(socket.IPPROTO_TCP, SAVE_SYN, 1)
            sockets.set(unused.fileno(), _MARK)
        except OSError as error:
            raise explained(error, action) from error

    def _requireMap(self) -> BPFMap:
        if self._sockets is None:
            raise OptionUnavailable(self.why)
        return self._sockets


def openCarrier(pins: Path = PINS, mayLoad: bool = True) -> OptionCarrier:
    """
    Return a carrier with the installed program, or with one loaded now if the process is permitted to load
    it.

    @param pins: the directory of C{txrdma smc-option install}.
    """
    reasons = []
    try:
        return OptionCarrier(_verified(_pinned(pins)))
    except OptionUnavailable as error:
        reasons.append(str(error))
    missing = missingCapabilities(effectiveCapabilities())
    if mayLoad and missing:
        reasons.append(f"to load the program this process lacks {' and '.join(missing)}")
    elif mayLoad:
        try:
            loaded = load(processCgroup())
            return OptionCarrier(_verified(loaded.sockets), loaded)
        except OptionUnavailable as error:
            reasons.append(str(error))
    return OptionCarrier(None, why="; ".join(reasons))


def _pinned(pins: Path) -> BPFMap:
    try:
        return BPFMap.pinned(pins / SOCKETS)
    except OSError as error:
        raise OptionUnavailable(pinnedError(error, pins)) from error


def pinnedError(error: OSError, pins: Path) -> str:
    """Return why an installed map can't be opened, and what to do."""
    if error.errno == errno.ENOENT:
        return f"nothing is installed at {pins}: run txrdma smc-option install as root"
    if error.errno == errno.EACCES:
        return (
            f"user {os.geteuid()} may not use the program installed at {pins}: "
            "install it with txrdma smc-option install --group, for a group of this user"
        )
    if error.errno == errno.EPERM:
        return (
            f"this kernel requires CAP_BPF to use the program installed at {pins}; "
            "without it, Linux 5.19 or sysctl kernel.unprivileged_bpf_disabled=0 is required"
        )
    return str(explained(error, f"open {pins / SOCKETS}"))


def _verified(sockets: BPFMap) -> BPFMap:
    """Check with a temporary listener that the kernel calls the program; raises L{OptionUnavailable}."""
    why = "the program is not attached to a cgroup of this process: see txrdma smc-option status"
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)  # the loopback interface may be down
            probe.bind(("127.0.0.1", 0))
            sockets.set(probe.fileno(), _MARK)
            probe.listen(1)
            flags = int.from_bytes(sockets.get(probe.fileno(), STORAGE_BYTES), sys.byteorder)
            if flags & NOTICED:
                return sockets
    except OSError as error:
        why = str(explained(error, "test the TCP option"))
    sockets.close()
    raise OptionUnavailable(why)
