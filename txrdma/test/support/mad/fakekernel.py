"""
A simulated kernel with management ports, at the interface of C{/dev/infiniband/umadN}.

Written from the kernel's interface, not from txrdma's code, and compared with a real kernel in
L{txrdma.test.system.kernel.test_mad}. Long messages are passed on completely if an agent has registered for
that.
"""

from __future__ import annotations

import errno
import os
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from twisted.internet.task import Clock

from txrdma.iba.types import GID

REGISTER_AGENT = 0xC01C1B01
ENABLE_PKEY = 0x1B03
REGISTER_AGENT2 = 0xC0281B04
UNREGISTER_AGENT = 0x40041B02

MOST_AGENTS = 32
"""Largest number of agents of one file."""

TRAP_REPRESS = 0x07
_LOCAL = struct.Struct("=IIIII")


def _isResponse(datagram: bytes | bytearray) -> bool:
    return bool(datagram[3] & 0x80) or datagram[3] == TRAP_REPRESS


@dataclass
class Agent:
    number: int
    managementClass: int
    methods: int
    rmpp: int
    oui: int


@dataclass(eq=False)
class File:
    port: str
    hasPKey: bool = False
    isDead: bool = False
    agents: dict[int, Agent] = field(default_factory=dict)
    toRead: deque[bytes] = field(default_factory=deque)
    open: dict[tuple[int, int], Any] = field(default_factory=dict)


class FakeKernel:
    """
    Replaces the module C{os} in C{txrdma.mad.ports.umad}, and with L{ioctl} that of C{fcntl}.

    @ivar gids: the GID of each port, by the name of its device file.
    @ivar lids: the LID of each InfiniBand port, by the name of its device file.
    @ivar cables: the peer of each port; all ports are ports 1 of channel adapters.
    @ivar hasSMI: whether there is a queue pair 0.
    @ivar isOld: whether it supports only the older registration call.
    @ivar isGone: whether the device was removed.
    @ivar lose: returns whether a datagram is lost.
    @ivar sent: every message that was written, with its header.
    """

    O_RDWR, O_NONBLOCK, O_CLOEXEC = os.O_RDWR, os.O_NONBLOCK, os.O_CLOEXEC
    strerror = staticmethod(os.strerror)

    def __init__(self, clock: Clock, gids: dict[str, GID]) -> None:
        self.clock = clock
        self.gids = gids
        self.lids: dict[str, int] = {}
        self.cables: dict[str, str] = {}
        self._out: dict[str, GID] = {}
        self.hasSMI = False
        self.isGone = False
        self.isOld = False
        self.isFull = False
        self.lose: Callable[[bytes], bool] = lambda datagram: False
        self.sent: list[bytes] = []
        self.files: dict[int, File] = {}
        self.lateness = 0.0
        self._numbers = iter(range(1 << 20, 1 << 30))

    # os

    def open(self, path: str, flags: int) -> int:
        name = path.rpartition("/")[2]
        if name not in self.gids:
            raise FileNotFoundError(errno.ENOENT, "No such file", path)
        number = next(self._numbers)
        self.files[number] = File(name)
        return number

    def close(self, fd: int) -> None:
        file = self.files.pop(fd)
        for call in file.open.values():
            call.cancel()

    def readv(self, fd: int, buffers: list[bytearray]) -> int:
        file = self._file(fd)
        if not file.toRead:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        (buffer,) = buffers
        message = file.toRead[0]
        if len(message) > len(buffer):
            # The header and the first segment, from which the reader learns the length.
            buffer[: 64 + 256] = message[: 64 + 256]
            raise OSError(errno.ENOSPC, "No space left on device")
        buffer[: len(message)] = message
        file.toRead.popleft()
        return len(message)

    def write(self, fd: int, message: bytes) -> int:
        file = self._file(fd)
        if self.isFull:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        number, _status, timeout, _retries, _length = _LOCAL.unpack_from(message)
        agent = file.agents.get(number)
        datagram = bytearray(message[64:])
        if not file.hasPKey:
            raise AssertionError("short headers without P_Key are not supported")
        if agent is None or len(datagram) < 36 or agent.managementClass != datagram[1]:
            raise OSError(errno.EINVAL, "Invalid argument")
        if len(datagram) > 256 and not agent.rmpp:
            raise OSError(errno.EINVAL, "Invalid argument")
        if not _isResponse(datagram):
            datagram[8:12] = (agent.number + 1).to_bytes(4, "big")
            if timeout:
                key = datagram[1], int.from_bytes(datagram[12:16], "big")
                if key in file.open:
                    raise OSError(errno.EINVAL, "Invalid argument")
                file.open[key] = self.clock.callLater(
                    timeout / 1000 + self.lateness, self._late, file, key, message[:64], bytes(datagram[:24])
                )
        self.sent.append(message[:64] + datagram)
        if not self.lose(bytes(datagram)):
            self.clock.callLater(0.001, self._carry, file.port, message[:64], bytes(datagram))
        return len(message)

    # fcntl

    def ioctl(self, fd: int, number: int, argument: bytearray | int = 0, mutate: bool = True) -> int:
        file = self._file(fd)
        if number == UNREGISTER_AGENT:
            assert isinstance(argument, bytearray)
            (which,) = struct.unpack("=I", argument)
            if file.agents.pop(which, None) is None:
                raise OSError(errno.EINVAL, "Invalid argument")
            return 0
        if number == ENABLE_PKEY:
            if file.agents or file.hasPKey:
                raise OSError(errno.EINVAL, "Invalid argument")
            file.hasPKey = True
            return 0
        assert isinstance(argument, bytearray)
        if number == REGISTER_AGENT2 and not self.isOld:
            file.hasPKey = True
            layout = "=IIBB2xIQQIB3x"
            _, qpn, managementClass, version, flags, low, high, oui, rmpp = struct.unpack(layout, argument)
        elif number == REGISTER_AGENT:
            layout = "=IQQBBB3sBx"
            _, low, high, qpn, managementClass, version, output, rmpp = struct.unpack(layout, argument)
            oui, flags = int.from_bytes(output, "big"), 0
        else:
            raise OSError(errno.ENOTTY, "Inappropriate ioctl for device")
        if qpn == 0 and not self.hasSMI:
            raise OSError(errno.EPROTONOSUPPORT, "Protocol not supported")
        if flags or qpn not in (0, 1) or (managementClass in (0x01, 0x81)) != (qpn == 0):
            raise OSError(errno.EINVAL, "Invalid argument")
        methods = low | high << 64
        for other in self._on(file.port):
            for agent in other.agents.values():
                same = (agent.managementClass, agent.oui) == (managementClass, oui)
                if same and agent.methods & methods:
                    raise OSError(errno.EINVAL, "Invalid argument")
        taken = sorted(file.agents)
        fresh = next((n for n in range(MOST_AGENTS) if n not in taken), None)
        if fresh is None:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        file.agents[fresh] = Agent(fresh, managementClass, methods, rmpp, oui)
        argument[:4] = struct.pack("=I", fresh)
        return 0

    # Transmission

    def _on(self, port: str | None) -> list[File]:
        return [file for file in self.files.values() if file.port == port and not file.isDead]

    def vanish(self, name: str) -> None:
        for file in self._on(name):
            file.agents.clear()

    def pullOut(self, name: str) -> None:
        self._out[name] = self.gids.pop(name)
        for file in self._on(name):
            file.isDead = True

    def putBack(self, name: str) -> None:
        self.gids[name] = self._out.pop(name)

    def _file(self, fd: int) -> File:
        file = self.files[fd]
        if self.isGone or file.isDead:
            raise OSError(errno.EIO, "Input/output error")
        return file

    def _late(self, file: File, key: tuple[int, int], header: bytes, datagram: bytes) -> None:
        del file.open[key]
        number, _, timeout, retries, _ = _LOCAL.unpack_from(header)
        local = _LOCAL.pack(number, errno.ETIMEDOUT, timeout, retries, 64 + 24)
        file.toRead.append(local + header[20:] + datagram)

    def _carry(self, source: str, header: bytes, datagram: bytes) -> None:
        smp = bytearray(datagram)
        isSMP = datagram[1] in (0x01, 0x81)
        if source not in self.gids or int.from_bytes(header[20:24], "big") != (0 if isSMP else 1):
            return
        port = self._directed(source, smp) if datagram[1] == 0x81 else self._target(header)
        for file in self._on(port):
            for agent in file.agents.values():
                if self._isFor(file, agent, smp):
                    self._arrive(file, agent, source, header, bytes(smp))
                    return

    def _target(self, header: bytes) -> str | None:
        if header[32]:
            return next((name for name, gid in self.gids.items() if gid.raw == header[36:52]), None)
        lid = int.from_bytes(header[28:30], "big")
        return next((name for name, own in self.lids.items() if own == lid), None)

    def _directed(self, source: str, smp: bytearray) -> str | None:
        pointer, hops, isReturning = smp[6], smp[7], smp[4] >> 7
        forth, back = memoryview(smp)[128:192], memoryview(smp)[192:256]
        permissive = smp[34:36] if not isReturning else smp[32:34]
        if hops > 1 or permissive != b"\xff\xff" or pointer != (hops + 1 if isReturning else 0):
            return None
        if hops == 0:
            smp[6] = 0 if isReturning else 1
            return source
        if (back if isReturning else forth)[1] != 1:
            return None
        if isReturning:
            smp[6] = 0
        else:
            smp[6] = 2
            back[1] = 1
        return self.cables.get(source)

    @staticmethod
    def _isFor(file: File, agent: Agent, datagram: bytes | bytearray) -> bool:
        if agent.managementClass != datagram[1]:
            return False
        if not _isResponse(datagram):
            return bool(agent.methods >> datagram[3] & 1)
        number, identifier = struct.unpack_from(">II", datagram, 8)
        isSegment = not agent.rmpp and datagram[1] == 3 and datagram[24] == 1
        return number == agent.number + 1 and ((datagram[1], identifier) in file.open or isSegment)

    def _arrive(self, file: File, agent: Agent, source: str, header: bytes, datagram: bytes) -> None:
        call = file.open.pop((datagram[1], int.from_bytes(datagram[12:16], "big")), None)
        if call is not None:
            call.cancel()
        local = _LOCAL.pack(agent.number, 0, 0, 0, 64 + len(datagram))
        qpn, lid = (0 if datagram[1] in (0x01, 0x81) else 1), self.lids.get(source, 0)
        if datagram[1] == 0x81:
            lid = 0xFFFF
        grh = header[32:36] + (self.gids[source].raw if header[32] else bytes(16)) + header[52:64]
        remote = struct.pack(">IIHBB", qpn, 0, lid, 0, 0) + grh
        file.toRead.append(local + remote + datagram)
