"""
Physical networks of this host: reads the tables, the network interfaces and the RDMA ports.

L{txrdma.ports.pnettable} has the rules. The tables are the file that the environment variable C{TXRDMA_PNET}
names, or C{/etc/txrdma/pnet.conf}, and after it the kernel's table for AF_SMC sockets.
"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from twisted.logger import Logger

from txrdma.error import DeviceUnavailable, WireError
from txrdma.iba.verbs import PortState
from txrdma.kit.logs import errorText, RateLimitedLogger
from txrdma.kit.values import frozen
from txrdma.ports import pnettable
from txrdma.ports.netlink import DUMP, interfaceWith, NetworkInterface
from txrdma.ports.netlinkqueries import query
from txrdma.ports.network import HostNetwork
from txrdma.ports.pnettable import PNETFinding, portFor, RDMAPort, Table
from txrdma.ports.sysfs import devices, SYS

_rateLimited = RateLimitedLogger(Logger())

USUAL_FILE: Final = "/etc/txrdma/pnet.conf"
_PROTOCOLS: Final = "/proc/net/protocols"
_GENERIC_NETLINK: Final = 16
_CACHE_SECONDS: Final = 1.0

_LOCK_SECONDS: Final = 10.0
"""Seconds to wait for another process that changes the table: any user can lock the folder forever."""

_LOCK_RETRY_SECONDS: Final = 0.05
_DEEPEST: Final = 8


def tableFile() -> Path:
    """Return the path of the table: the environment variable C{TXRDMA_PNET}, or L{USUAL_FILE}."""
    return Path(os.environ.get("TXRDMA_PNET") or USUAL_FILE)


def readText(path: Path) -> str:
    """
    Return the text of a table; empty if the file does not exist.

    @raise OSError: the file cannot be read.
    """
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return ""


@contextmanager
def changing(path: Path) -> Iterator[None]:
    """
    Wait until no other process changes a table, and lock it while the context is active.

    The lock is that of the folder, which also exists before the file, and when the file is replaced.

    @raise OSError: the folder does not exist, or another process has locked it for ten seconds.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(folder)
        yield
    finally:
        os.close(folder)


def _lock(folder: int) -> None:
    """Lock a folder; raise C{TimeoutError} if another process does not release its lock."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise TimeoutError("another process has locked the folder (fuser -v lists it)") from None
            time.sleep(_LOCK_RETRY_SECONDS)
        except OSError:  # NFS locks no folders
            return


def writeText(path: Path, text: str, mode: int = 0o644) -> None:
    """
    Replace a file atomically: readers see the whole old one or the whole new one, with its mode and owner.

    @param mode: mode of a new file. Others can read the file only if they can read a new one, and members of
        a group only if the file has their group.
    @raise OSError: the file cannot be written.
    """
    descriptor, made = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            known = path.stat() if path.exists() else None
            if known is not None:
                with suppress(PermissionError):  # only root can preserve another owner
                    os.fchown(file.fileno(), known.st_uid, known.st_gid)
                mode = known.st_mode & (0o777 if mode & 0o004 else 0o770)
                if os.fstat(file.fileno()).st_gid != known.st_gid:
                    mode &= 0o707
            os.fchmod(file.fileno(), mode)
        os.replace(made, path)
    except BaseException:
        os.unlink(made)
        raise


def kernelTable() -> Table:
    """
    Return the kernel's table; empty if the kernel does not support AF_SMC sockets.

    @raise OSError: the kernel supports them, and does not answer.
    """
    try:
        protocols = Path(_PROTOCOLS).read_text()
    except OSError:
        return ()
    if not any(line.split()[0] == "SMC" for line in protocols.splitlines() if line.strip()):
        return ()
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _GENERIC_NETLINK) as sock:
        sock.settimeout(_CACHE_SECONDS)
        sock.bind((0, 0))
        try:
            [answer] = query(sock, pnettable.CONTROLLER, pnettable.familyRequest("SMC_PNETID"))
            answers = query(sock, pnettable.familyOf(answer), pnettable.tableRequest(), DUMP)
            return pnettable.tableOf(answers)
        except (WireError, ValueError) as error:
            raise OSError(f"the kernel's PNET table cannot be decoded: {error}") from error


def tables() -> tuple[Table, ...]:
    """Return the tables in order of precedence; one that cannot be read is logged and omitted."""
    found: list[Table] = []
    path = tableFile()
    try:
        found.append(pnettable.parseTable(readText(path)))
    except (OSError, ValueError) as error:
        _rateLimited.warn(
            str(path), "the PNET table {path} is not used: {error}", path=path, error=errorText(error)
        )
    try:
        found.append(kernelTable())
    except OSError as error:
        _rateLimited.warn("kernel", "the kernel's PNET table is not used: {error}", error=errorText(error))
    return tuple(found)


def rdmaPorts(root: str | Path = SYS) -> list[RDMAPort]:
    """Return the RDMA ports of this host with their network interfaces, except iWARP ports."""
    found = []
    for device in devices(root):
        try:
            if device.isIWARP:
                continue
            for port in device.ports:
                netdevs = {entry.netdev for entry in port.gidTable()} | {port.netdev}
                isActive = port.state is PortState.ACTIVE
                found.append(RDMAPort(device.name, port.number, frozenset(netdevs - {""}), isActive))
        except DeviceUnavailable:
            continue  # removed meanwhile
    return found


def beneath(interface: str, root: str | Path = SYS) -> list[str]:
    """Return an interface, followed by its lower interfaces if it is a VLAN or a bond."""
    found = [interface]
    for each in found:  # it grows meanwhile
        if len(found) < _DEEPEST:
            try:
                entries = os.listdir(Path(root, "class", "net", each))
            except OSError:
                continue
            lower = sorted(name.removeprefix("lower_") for name in entries if name.startswith("lower_"))
            found += [name for name in lower if name not in found]
    return found


@frozen
class Networks:
    """
    The physical networks of this host at one time.

    @ivar tables: tables in use; the first one takes precedence.
    @ivar interfaces: interfaces of this network namespace.
    """

    ports: tuple[RDMAPort, ...]
    tables: tuple[Table, ...]
    interfaces: tuple[NetworkInterface, ...]
    root: str = str(SYS)

    @classmethod
    def read(cls, root: str | Path = SYS) -> Networks:
        """
        Read tables and interfaces once.

        @raise DeviceUnavailable: the system does not list its interfaces.
        """
        network = HostNetwork.open()
        try:
            interfaces = network.interfaces()
        finally:
            network.close()
        return cls(tuple(rdmaPorts(root)), tables(), tuple(interfaces), str(root))

    def interfaceOf(self, own: str, peer: str) -> NetworkInterface | None:
        """
        Return the interface of a connection: the loopback interface if the peer's address is local.

        @param own: IP address of the local end.
        @param peer: IP address of the remote end.
        """
        if interfaceWith(peer, self.interfaces) is not None:
            return next((each for each in self.interfaces if each.isLoopback), None)
        return interfaceWith(own, self.interfaces)

    def portFor(self, own: str, peer: str) -> PNETFinding:
        """Return the RDMA port for connections from a local address to a peer's address."""
        interface = self.interfaceOf(own, peer)
        if interface is None:
            return PNETFinding(None, f"no network interface has the address {own}")
        return self.portOf(interface)

    def portOf(self, interface: NetworkInterface) -> PNETFinding:
        """Return the RDMA port for connections by an interface."""
        return portFor(beneath(interface.name, self.root), self.ports, self.tables)
