"""
Ports in ibsim's simulated fabrics, over its socket protocol.

ibsim is the simulator of the OpenFabrics Alliance. Its clients usually are C tools with a preloaded library,
which is not used here. The protocol is that of versions 0.10 to 0.12.
"""

from __future__ import annotations

import errno
import os
import socket
from contextlib import ExitStack, suppress
from struct import error as structError
from struct import Struct
from typing import Final

from zope.interface import implementer

from twisted.internet.interfaces import IReactorFDSet, IReadDescriptor, IWriteDescriptor
from twisted.logger import Logger

from txrdma.error import DeviceUnavailable, InvalidRequest, WireError
from txrdma.iba.path import GMP_QKEY, IBDRPath, IBPath, MADEndPort
from txrdma.iba.types import GID, GUID, LID, PKey, QPN
from txrdma.iba.verbs import Buffer, NodeType
from txrdma.interfaces import IMADPort
from txrdma.kit.wire import bits, Code, data, Layout, wire
from txrdma.mad.core.addressing import mayBeFrom
from txrdma.mad.layouts.smp import NodeInfo, PKeyTable, PortInfo
from txrdma.mad.ports.batches import Batches, MOST
from txrdma.mad.ports.descriptor import DescriptorPort
from txrdma.unix.sockets import isTrusted

_log = Logger()

DEFAULT_NAME: Final = "sim"
_MOST_OTHER_ANSWERS: Final = 16
"""Largest number of skipped answers: to an earlier client, or to a question that took too long."""

CONTROL_SECONDS: Final = 5.0
"""Seconds to wait for ibsim when a port is opened; it answers at once, or not at all."""

POLL_SECONDS: Final = 0.5
"""Seconds to wait for each answer when the port is read again, which blocks the reactor."""

_MAGIC: Final = 0xDEADBEEF
_ENVELOPE: Final = Struct(">HxxHxxIII4xQ")
_DIRECTED_HEAD: Final = _ENVELOPE.pack(0xFFFF, 0xFFFF, 0, 0, 0, 256)
"""Envelope of all datagrams on directed routes."""

_LENGTH: Final = 288
_OFFSET: Final = 32
_PERMISSIVE: Final = 0xFFFF
_STATUS: Final = 19
_BATCHES: Final = 8
"""
Maximum number of batches that are read before other readers of the reactor run. Requests caused by the
answers of one batch are sent together: only the first one wakes ibsim, which costs the most.
"""

_BUFFER_BYTES: Final = 4 << 20
_SMALLEST_IDENTIFIER: Final = 1 << 22
"""Smallest identifier of a client; those of other clients are process IDs, which are lower."""


class ControlType(Code):
    """Requests of a client on ibsim's control socket."""

    ERROR = 0
    CONNECT = 1
    DISCONNECT = 2
    GET_PORT = 3
    GET_VENDOR = 4
    GET_GID = 5
    GET_GUID = 6
    GET_NODE_INFO = 7
    GET_PORT_INFO = 8
    SET_ISSM = 9
    GET_PKEYS = 10


@wire(80, little=True)
class IbsimControl(Layout):
    """A control message, in the byte order of the host; little-endian hosts are supported."""

    magic: int = bits(32)
    slot: int = bits(32)
    type: ControlType = bits(32)
    length: int = bits(32)
    content: bytes = data(64)


_CONNECT: Final = Struct("<III32s")
_CREDENTIALS: Final = Struct("3i")
_SCM_CREDENTIALS: Final[int] = getattr(socket, "SCM_CREDENTIALS", 2)  # not in PyPy; see SO_PEERCRED


def _abstract(base: str, name: str) -> bytes:
    return b"\0" + f"{base}:{name}".encode() + b"\0"


@implementer(IMADPort, IReadDescriptor, IWriteDescriptor)
class IbsimPort(DescriptorPort):
    """
    An attachment to a node of a running ibsim.

    A host is attached to by its first port, a switch by its port 0. ibsim sends requests of any class to
    subnet managers, and to no other client.
    """

    transactionIDBits = 48
    hasSMI = True
    doesRMPP = False

    def __init__(
        self,
        reactor: IReactorFDSet,
        base: str = "",
        node: str = "",
        isSM: bool = False,
        isOfAnyUser: bool = True,
    ) -> None:
        """
        @param base: prefix of the names of ibsim's sockets; by default that of IBSIM_SOCKNAME, or C{"sim"}.
        @param node: its identifier or description; by default that of SIM_HOST, or the first in the net file.
        @param isSM: receive datagrams for the subnet manager.
        @param isOfAnyUser: accept an ibsim of any user, not only of the user of this process and of root.
        @raise DeviceUnavailable: no ibsim runs there, or it belongs to another user, has no such node, or has
            too many clients.
        """
        super().__init__(reactor)
        self._base = base or os.environ.get("IBSIM_SOCKNAME", DEFAULT_NAME)
        node = node or os.environ.get("SIM_HOST", "")
        self.name = "ibsim:" + node if node else "ibsim"
        self._waiting: list[bytes] = []
        self._holds = False
        self._slot: int | None = None  # 0 is that of another client
        self._isOfAnyUser = isOfAnyUser
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC
        with ExitStack() as undo:
            try:
                self._control = undo.enter_context(socket.socket(socket.AF_UNIX, kind))
                self._socket = undo.enter_context(socket.socket(socket.AF_UNIX, kind))
            except OSError as error:
                raise DeviceUnavailable(f"{self.name} has no socket: {error}") from error
            undo.callback(self.close)
            try:
                self._attach(node, isSM)
                self.endPort = self.refresh()
                self._control.settimeout(POLL_SECONDS)
            except OSError as error:
                raise DeviceUnavailable(f"no ibsim answers by the name {self._base!r}: {error}") from error
            undo.pop_all()

    def __repr__(self) -> str:
        return f"<IbsimPort {self.name} LID {self.endPort.lid}>"

    # IMADPort

    def send(self, datagram: Buffer, path: IBPath, answerWithin: float = 0.0) -> None:
        if self._closed:
            raise DeviceUnavailable(f"{self.name} is closed")
        if len(datagram) != 256:
            raise InvalidRequest(f"a datagram has 256 bytes here, not {len(datagram)}")
        if isinstance(path, IBDRPath):
            if path.drSLID != _PERMISSIVE or path.drDLID != _PERMISSIVE:
                raise InvalidRequest("ibsim does not support directed routes with LID-routed parts")
            head = _DIRECTED_HEAD
        else:
            isSMP = datagram[1] & 0x7F == 1
            dqpn, sqpn = (0, 0) if isSMP else (path.dqpn or 1, path.sqpn or 1)
            try:
                head = _ENVELOPE.pack(path.dlid, 0, dqpn, sqpn, 0, 256)
            except structError as error:
                raise InvalidRequest(f"{self.name}: {path} does not fit into a header: {error}") from error
        self._checkSpace(self._waiting)
        self._waiting.append(head + datagram)
        if len(self._waiting) == 1 and not self._holds:
            self._flush()

    def pathOf(self, envelope: object) -> IBPath:
        assert isinstance(envelope, tuple)  # the datagrams that came with it, and where it is
        dlid, slid, dqpn, sqpn, _status, _length = _ENVELOPE.unpack_from(*envelope)
        return IBPath(
            slid=LID(slid), dlid=LID(dlid), dqpn=QPN(dqpn), sqpn=QPN(sqpn), qkey=GMP_QKEY if dqpn else 0
        )

    def isFrom(self, envelope: object, path: IBPath) -> bool:
        assert isinstance(envelope, tuple)  # as in pathOf
        return mayBeFrom(path, _ENVELOPE.unpack_from(*envelope)[1], None, self.endPort.lidMask)

    def refresh(self) -> MADEndPort:
        if self._closed:
            raise DeviceUnavailable(f"{self.name} is closed")
        info = PortInfo.decode(self._ask(ControlType.GET_PORT_INFO, b"\0"))
        node = NodeInfo.decode(self._ask(ControlType.GET_NODE_INFO))
        # ibsim reports the node's GUID as that of the port, too; the GUIDs of ports follow it.
        offset = 0 if node.nodeType is NodeType.SWITCH else info.localPortNum
        guid = GUID.fromInt(int(node.nodeGUID) + offset)
        pkeys = PKeyTable.decode(self._ask(ControlType.GET_PKEYS)).pkeys
        self.endPort = MADEndPort(
            portGUID=guid,
            gids=(GID.fromParts(info.gidPrefix, guid),),
            portNum=info.localPortNum,
            lid=info.lid,
            lidMask=info.lmc,
            smLID=info.masterSMLID,
            smServiceLevel=info.masterSMSL,
            pkeys=tuple(PKey(pkey) for pkey in pkeys if pkey),
            subnetTimeout=info.subnetTimeOut or 18,
        )
        return self.endPort

    def _release(self) -> None:
        self._waiting.clear()
        if self._receiver is not None:
            self._reactor.removeWriter(self)
        if self._slot is not None:
            asked = IbsimControl(magic=_MAGIC, slot=self._slot, type=ControlType.DISCONNECT)
            with suppress(OSError):  # it has ended already
                self._control.send(asked.encode())
        self._control.close()
        self._socket.close()

    # IReadDescriptor, IWriteDescriptor

    def fileno(self) -> int:
        return self._socket.fileno()

    def doRead(self) -> None:
        receiver, receive = self._receiver, self._batches.receive
        assert receiver is not None
        received = receiver.received
        self._holds = True
        try:
            for _ in range(_BATCHES):
                batch = receive()
                for at in range(0, len(batch), _LENGTH):
                    datagram = batch[at + _OFFSET : at + _LENGTH]
                    try:
                        if batch[at + _STATUS]:
                            receiver.undeliverable(datagram, "there is no route to it")
                        else:
                            received(datagram, (batch, at))
                    except Exception:
                        _log.failure(
                            "the receiver of {port} raised when it was called with a datagram", port=self.name
                        )
                    if self._closed:
                        return
                self._flush()
                if self._closed:
                    return
        except BlockingIOError:
            pass
        except OSError as error:
            self._lost(error)
        finally:
            self._holds = False
            self._flush()

    def doWrite(self) -> None:
        self._flush()
        if not self._waiting and not self._closed:
            self._reactor.removeWriter(self)

    def _flush(self) -> None:
        """Send waiting datagrams; those that ibsim's socket cannot take remain queued."""
        waiting = self._waiting
        if self._closed:
            waiting.clear()
        try:
            while len(waiting) > 1:
                del waiting[: self._batches.send(waiting[:MOST])]
            if waiting:
                self._socket.send(waiting[0])
                del waiting[0]
        except BlockingIOError:
            self._reactor.addWriter(self)
        except OSError as error:
            waiting.clear()
            self._lost(error)

    # Attaching.

    def _attach(self, node: str, isSM: bool) -> None:
        self._control.settimeout(CONTROL_SECONDS)
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        identifier = self._bind()
        self._control.connect(_abstract(self._base, "ctl"))
        asked = _CONNECT.pack(identifier, 0, isSM, node.encode()[:31])
        try:
            self._ask(ControlType.CONNECT, asked)
        except DeviceUnavailable as error:
            if isinstance(error.__cause__, OSError):
                raise
            raise DeviceUnavailable(f"ibsim has no node {node!r}, or accepts no further client") from None
        self._socket.connect(_abstract(self._base, f"out{self._slot}"))
        self._socket.setblocking(False)
        self._batches = Batches(self._socket.fileno(), _LENGTH)
        for which in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            self._socket.setsockopt(socket.SOL_SOCKET, which, _BUFFER_BYTES)

    def _bind(self) -> int:
        """Bind unused names: ibsim exits if it finds no data socket of a client."""
        identifier = _SMALLEST_IDENTIFIER + os.getpid()
        while True:
            try:
                self._control.bind(_abstract(self._base, f"ctl{identifier}"))
                self._socket.bind(_abstract(self._base, f"in{identifier}"))
                return identifier
            except OSError:
                if identifier > 1 << 30:
                    raise
                identifier += _SMALLEST_IDENTIFIER

    def _ask(self, kind: ControlType, content: bytes = b"") -> bytes:
        """
        Send a request on the control socket, and return the answer.

        @raise DeviceUnavailable: ibsim answers with an error, does not answer in time, or belongs to another
            user.
        """
        slot, padded = self._slot or 0, content.ljust(64, b"\0")
        asked = IbsimControl(magic=_MAGIC, slot=slot, type=kind, length=len(content), content=padded)
        try:
            self._control.send(asked.encode())
            for _ in range(_MOST_OTHER_ANSWERS):
                reply = self._reply()
                if reply.type in (kind, ControlType.ERROR):
                    break
            else:
                raise TimeoutError("it answers other questions")
        except OSError as error:
            if isinstance(error, ConnectionError):  # else a port that only serves never notices it
                self._lost(error)
            raise DeviceUnavailable(f"ibsim does not answer {kind.name}: {error}") from error
        if reply.type is ControlType.ERROR:
            raise DeviceUnavailable(f"ibsim refuses {kind.name}")
        return reply.content

    def _reply(self) -> IbsimControl:
        """
        Return the next message of the control socket, after noting the slot that it may assign.

        The kernel adds the credentials of its sender; SO_PEERCRED has none for datagrams.

        @raise DeviceUnavailable: it belongs to another user.
        """
        room = socket.CMSG_SPACE(_CREDENTIALS.size)
        try:
            message, ancillary, _flags, _address = self._control.recvmsg(80, room)
        except (ConnectionError, TimeoutError):
            raise
        except (
            OSError
        ):  # once more: ibsim exits if it answers CONNECT of a client that has closed its sockets
            message, ancillary, _flags, _address = self._control.recvmsg(80, room)
        users = (_CREDENTIALS.unpack(sender)[1] for _, kind, sender in ancillary if kind == _SCM_CREDENTIALS)
        if not self._isOfAnyUser and not isTrusted(user := next(users, -1)):
            with suppress(WireError):
                self._noteSlot(IbsimControl.decode(message))  # to release it
            raise DeviceUnavailable(
                f"the ibsim named {self._base!r} runs as another user ({user}), so it is not used by "
                "default; to use it, name the port, as by --device ibsim"
            ) from PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        reply = IbsimControl.decode(message)
        self._noteSlot(reply)
        return reply

    def _noteSlot(self, reply: IbsimControl) -> None:
        if reply.type is ControlType.CONNECT:
            self._slot = int.from_bytes(reply.content[:4], "little")
