"""
The C{option} carrier: SMC's TCP option on sockets of this process, as the Linux kernel's AF_SMC has it.

See RFC 7609, 3.1. A process marks a socket before it connects or listens, and asks afterwards whether the
peer had the option, too: only then both ends go on with CLC. Sockets that nobody has marked stay as they are.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from pathlib import Path
from typing import Final

from txrdma.error import InvalidRequest
from txrdma.smc.signalling.option._program import NOTICED, SEEN, STORAGE_BYTES, WANTED
from txrdma.smc.signalling.option.bpf import BPFMap
from txrdma.smc.signalling.option.loading import load, Loaded
from txrdma.smc.signalling.option.places import ownCgroup
from txrdma.smc.signalling.option.reasons import (
    effectiveCapabilities,
    explained,
    missingCapabilities,
    OptionUnavailable,
)
from txrdma.smc.signalling.option.savedsyn import saveSYNs, takeSYN

PINS: Final = Path("/run/txrdma-smc-option")
"""The directory in which C{txrdma smc-option install} leaves the program, for others to use."""

SOCKETS: Final = "sockets"
"""Name there of the map with the marks of sockets."""

_IP_FREEBIND: Final = 15
_MARK: Final = WANTED.to_bytes(STORAGE_BYTES, sys.byteorder)


class OptionCarrier:
    """
    Marks sockets, and reads what the program has noted about them.

    @ivar why: why the option can't be used here, and what to do about that; empty when it can.
    """

    def __init__(self, sockets: BPFMap | None, loaded: Loaded | None = None, why: str = "") -> None:
        """
        @param sockets: the map with the marks of sockets, which is taken over.
        @param loaded: a program that this process has loaded itself, which ends with the carrier.
        """
        self._sockets = sockets
        self._loaded = loaded
        self.why = why

    @property
    def isAvailable(self) -> bool:
        """Whether sockets of this process can have the option."""
        return self._sockets is not None

    def markBeforeConnect(self, client: socket.socket) -> None:
        """
        Have the SYN of a socket that does not connect yet carry the option.

        @raise OptionUnavailable: it can't be had here, or for this socket.
        """
        self._mark(client)

    def markBeforeListen(self, listener: socket.socket) -> None:
        """
        Have the answers of a socket that does not listen yet carry the option, to SYNs that have it.

        Until it is closed: no listener can take back what SYN-ACKs under way have promised.

        @raise OptionUnavailable: it can't be had here, or for this socket.
        """
        sockets = self._need()
        try:
            saveSYNs(listener)
            sockets.set(listener.fileno(), _MARK)
        except OSError as error:
            raise explained(error, "mark a listening socket") from error

    def peerHasOption(self, connected: socket.socket) -> bool:
        """
        Whether the peer of a connected or accepted socket has sent the option, and we have, too.

        False for sockets that were not marked, or are accepted by listeners that were not.

        @raise OptionUnavailable: the kernel does not say.
        """
        sockets = self._need()
        try:
            noted = int.from_bytes(sockets.get(connected.fileno(), STORAGE_BYTES), sys.byteorder)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return False
            raise explained(error, "ask for a socket's TCP option") from error
        return bool(noted & SEEN)

    def forget(self, connected: socket.socket) -> None:
        """
        Free what the kernel keeps of a connection for L{peerHasOption}, or take back a mark that is not used.

        The kernel does that itself when a socket is closed.

        @raise InvalidRequest: the socket listens; it has to be closed.
        @raise OptionUnavailable: the kernel does not forget.
        """
        sockets = self._need()
        if connected.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise InvalidRequest("a listening socket answers with the TCP option until it is closed")
        takeSYN(connected)
        try:
            sockets.delete(connected.fileno())
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise explained(error, "forget a socket's TCP option") from error

    def close(self) -> None:
        """Let go of the map, and of a program of our own. Twice is fine."""
        sockets, self._sockets = self._sockets, None
        loaded, self._loaded = self._loaded, None
        self.why = self.why or "the carrier is closed"
        for each in (sockets, loaded):
            if each is not None:
                each.close()

    def _mark(self, unused: socket.socket) -> None:
        sockets = self._need()
        try:
            sockets.set(unused.fileno(), _MARK)
        except OSError as error:
            raise explained(error, "mark a socket for the TCP option") from error

    def _need(self) -> BPFMap:
        if self._sockets is None:
            raise OptionUnavailable(self.why)
        return self._sockets


def openCarrier(pins: Path = PINS, mayLoad: bool = True) -> OptionCarrier:
    """
    Open the carrier, by what an administrator has installed, or by a program of this process itself.

    @param pins: the directory of C{txrdma smc-option install}.
    @param mayLoad: load a program where none is installed for us, if this process has the capabilities.
    @return: a carrier that may not be available; then it has the reasons.
    """
    reasons = []
    try:
        return OptionCarrier(_serving(_pinned(pins)))
    except OptionUnavailable as error:
        reasons.append(str(error))
    missing = missingCapabilities(effectiveCapabilities())
    if mayLoad and missing:
        reasons.append(f"to load a program of its own this process lacks {' and '.join(missing)}")
    elif mayLoad:
        try:
            loaded = load(ownCgroup())
            return OptionCarrier(_serving(loaded.sockets), loaded)
        except OptionUnavailable as error:
            reasons.append(str(error))
    return OptionCarrier(None, why="; ".join(reasons))


def _pinned(pins: Path) -> BPFMap:
    """Open the installed map."""
    try:
        return BPFMap.pinned(pins / SOCKETS)
    except OSError as error:
        raise OptionUnavailable(explainPinned(error, pins)) from error


def explainPinned(error: OSError, pins: Path) -> str:
    """Say why an installed map can't be opened, and what to do."""
    if error.errno == errno.ENOENT:
        return f"nothing is installed at {pins}: txrdma smc-option install, as root"
    if error.errno == errno.EACCES:
        return (
            f"user {os.geteuid()} may not use what is installed at {pins}: "
            "txrdma smc-option install --group, and be in that group"
        )
    if error.errno == errno.EPERM:
        return (
            f"this kernel lets nobody without CAP_BPF use what is installed at {pins}: "
            "that takes Linux 5.19, or sysctl kernel.unprivileged_bpf_disabled=0"
        )
    return str(explained(error, f"open {pins / SOCKETS}"))


def _serving(sockets: BPFMap) -> BPFMap:
    """
    Make sure that the program is called for sockets of this process, by one that listens for a moment.

    @raise OptionUnavailable: it is not; the map is closed.
    """
    why = "the program is not attached to a cgroup that this process is in: txrdma smc-option status"
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)  # the loopback interface may be down
            probe.bind(("127.0.0.1", 0))
            sockets.set(probe.fileno(), _MARK)
            probe.listen(1)
            noted = int.from_bytes(sockets.get(probe.fileno(), STORAGE_BYTES), sys.byteorder)
            if noted & NOTICED:
                return sockets
    except OSError as error:
        why = str(explained(error, "try the TCP option"))
    sockets.close()
    raise OptionUnavailable(why)
