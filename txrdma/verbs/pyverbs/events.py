"""
Asynchronous events of a device of libibverbs, on the reactor.

Follows InfiniBand Architecture vol. 1, 11.6.3. pyverbs would block for an event, and hold the interpreter
meanwhile; with a non-blocking descriptor, it raises an error instead if there is none.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from weakref import ref, ReferenceType

from zope.interface import implementer

from twisted.internet.interfaces import IReactorFDSet, IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.iba.verbs import AsyncEventKind
from txrdma.verbs.pyverbs.bindings import Pyverbs

_log = Logger()

_UEVENTS: Final = 15
_KERNEL: Final = 1

KINDS: Final = {
    0: AsyncEventKind.CQ_ERROR,
    1: AsyncEventKind.QP_FATAL,
    2: AsyncEventKind.QP_REQUEST_ERROR,
    3: AsyncEventKind.QP_ACCESS_ERROR,
    4: AsyncEventKind.COMMUNICATION_ESTABLISHED,
    5: AsyncEventKind.SQ_DRAINED,
    6: AsyncEventKind.PATH_MIGRATED,
    7: AsyncEventKind.PATH_MIGRATION_FAILED,
    8: AsyncEventKind.DEVICE_FATAL,
    9: AsyncEventKind.PORT_ACTIVE,
    10: AsyncEventKind.PORT_ERROR,
    11: AsyncEventKind.LID_CHANGE,
    12: AsyncEventKind.PKEY_CHANGE,
    13: AsyncEventKind.SM_CHANGE,
    14: AsyncEventKind.SRQ_ERROR,
    15: AsyncEventKind.SRQ_LIMIT_REACHED,
    16: AsyncEventKind.QP_LAST_WQE_REACHED,
    17: AsyncEventKind.CLIENT_REREGISTER,
    18: AsyncEventKind.GID_CHANGE,
}
"""The kinds of events by the numbers of C{ibv_get_async_event(3)}."""

# The kinds of events by the object that they concern.
_COMPLETION_QUEUES: Final = frozenset({0})
_PORTS: Final = frozenset({9, 10, 11, 12, 13, 17, 18})
_QUEUE_PAIRS: Final = frozenset({1, 2, 3, 4, 5, 6, 7, 16})


class Notification(NamedTuple):
    """An asynchronous event: its kind, and the number of the port or queue pair, or the queue's context."""

    kind: AsyncEventKind
    number: int | None


class _AsyncEvent(ctypes.Structure):
    """The C structure C{struct ibv_async_event} of libibverbs."""

    _fields_ = (("element", ctypes.c_void_p), ("type", ctypes.c_int))


class _QueuePair(ctypes.Structure):
    """The beginning of the C structure C{struct ibv_qp} of libibverbs."""

    _fields_ = (("pointers", ctypes.c_void_p * 6), ("handle", ctypes.c_uint32), ("number", ctypes.c_uint32))


class _CompletionQueue(ctypes.Structure):
    """The beginning of the C structure C{struct ibv_cq} of libibverbs."""

    _fields_ = (("pointers", ctypes.c_void_p * 2), ("context", ctypes.c_void_p))


def read(event: Any) -> Notification | None:
    """
    Return the kind and the object of an event of pyverbs; None for an unknown kind.

    pyverbs reports the kind only. The affected object is read from the C structure at the end of the event,
    which must have the same kind.
    """
    number = event.event_type
    kind = KINDS.get(number)
    if kind is None:
        return None
    address = id(event) + type(event).__basicsize__ - ctypes.sizeof(_AsyncEvent)
    raw = _AsyncEvent.from_address(address)
    if raw.type != number or not raw.element:
        return Notification(kind, None)
    if number in _PORTS:
        return Notification(kind, ctypes.c_int.from_address(address).value)
    if number in _QUEUE_PAIRS:
        return Notification(kind, _QueuePair.from_address(raw.element).number)
    if number in _COMPLETION_QUEUES:
        return Notification(kind, _CompletionQueue.from_address(raw.element).context)
    return Notification(kind, None)


@implementer(IReadDescriptor)
class EventReader:
    """Reads a descriptor for a device, with a weak reference to it."""

    def __init__(self, reactor: IReactorFDSet, descriptor: int, ready: Callable[[], None]) -> None:
        self._reactor = reactor
        self._descriptor = descriptor
        self._device: ReferenceType[Any] = ref(ready.__self__)  # type: ignore[attr-defined]  # it is bound
        self._method = ready.__name__
        self.start()

    def start(self) -> None:
        """Add the reader to the reactor. Idempotent."""
        self._reactor.addReader(self)

    def fileno(self) -> int:
        return self._descriptor

    def logPrefix(self) -> str:
        return "txrdma.verbs.pyverbs"

    def doRead(self) -> None:
        device = self._device()
        if device is None:
            self.stop()
        else:
            getattr(device, self._method)()

    def connectionLost(self, reason: Failure) -> None:
        self.stop()

    def stop(self) -> None:
        self._reactor.removeReader(self)


def takeEvents(verbs: Pyverbs, context: Any) -> list[Notification]:
    """Take and acknowledge pending events, so that their objects may be destroyed."""
    taken: list[Notification] = []
    while True:
        try:
            event = context.get_async_event()
        except verbs.Error:
            return taken
        notification = read(event)
        event.ack()
        if notification is None:
            _log.debug("ignoring an asynchronous event of the unknown type {type}", type=event.event_type)
        else:
            taken.append(notification)


class Removals:
    """
    Reports that the kernel removes a device.

    For some drivers, such as rxe, the kernel does not notify processes that have the device open, but waits
    until they close it. It does send hotplug messages.
    """

    def __init__(self, context: Any) -> None:
        self.node = os.path.basename(os.readlink(f"/proc/self/fd/{context.cmd_fd}"))
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, _UEVENTS
        )
        try:
            self._socket.bind((0, _KERNEL))
        except OSError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """Return the socket, which is readable when there are messages."""
        return self._socket.fileno()

    def isRemoved(self) -> bool:
        """Read pending messages; return whether one reports the removal of the device."""
        found = False
        while True:
            try:
                message = self._socket.recv(8192)
            except BlockingIOError:
                return found
            except OSError:
                # Messages were lost: sysfs shows whether the device still exists.
                return found or not os.path.exists(f"/sys/class/infiniband_verbs/{self.node}")
            action, _, path = message.split(b"\0", 1)[0].decode(errors="replace").partition("@")
            if action == "remove" and path.endswith(f"/infiniband_verbs/{self.node}"):
                found = True

    def close(self) -> None:
        self._socket.close()
