"""Base of management ports that the reactor reads from a file descriptor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence, Sized
from typing import Final

from twisted.internet.interfaces import IReactorFDSet
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.error import DeviceUnavailable, ResourceExhausted
from txrdma.interfaces import IMADReceiver

_log = Logger()

MOST_WAITING: Final = 16_384
"""Maximum number of datagrams, of 256 bytes each, that wait while the send queue or socket is full."""

MOST_FAILURES: Final = 16
"""Largest number of failed reads in succession that are repeated; the next one closes the port."""


class DescriptorPort(ABC):
    """State of the port. Subclasses provide C{IMADPort} and C{IReadDescriptor}, and C{_release}."""

    name: str

    def __init__(self, reactor: IReactorFDSet) -> None:
        self._reactor = reactor
        self._receiver: IMADReceiver | None = None
        self._closed = False
        self._failures = 0  # of reads, in succession

    def _checkSpace(self, waiting: Sized) -> None:
        """
        Check that another datagram may wait: peers that send requests faster than the port can answer them
        would fill the queue with answers.

        @raise ResourceExhausted: too many datagrams wait.
        """
        if len(waiting) >= MOST_WAITING:
            raise ResourceExhausted(f"{self.name}: {MOST_WAITING} datagrams wait to be sent")

    # Documented by IMADPort and IReadDescriptor.

    def start(self, receiver: IMADReceiver) -> None:
        try:
            self._reactor.addReader(self)  # type: ignore[arg-type]  # subclasses are readers
        except OSError as error:
            raise ResourceExhausted(f"{self.name}: the reactor cannot read it: {error}") from error
        self._receiver = receiver

    def serve(self, managementClass: int, methods: Sequence[int], oui: int = 0) -> Callable[[], None]:
        return lambda: None  # by default, all requests for the port are delivered to it

    def close(self) -> None:
        if self._closed:
            return
        if self._receiver is not None:
            # While there is a descriptor to be known by.
            self._reactor.removeReader(self)  # type: ignore[arg-type]  # subclasses are readers
        self._closed = True
        self._release()

    @abstractmethod
    def _release(self) -> None:
        """Close descriptors and release other resources of the port, once."""

    def logPrefix(self) -> str:
        return type(self).__module__

    def connectionLost(self, reason: Failure) -> None:
        self._lost("the device has hung up")

    def _lost(self, reason: object) -> None:
        """Close the port, and report that it is lost, once."""
        if self._closed:
            return
        receiver = self._receiver
        self.close()
        if receiver is not None:
            with _log.failuresHandled("the receiver of {port} raised when it was lost", port=self.name):
                receiver.portLost(f"{self.name} is gone: {reason}")

    def _readFailed(self, error: Exception) -> None:
        """Log the first failed read in succession; close the port after too many, or without its device."""
        self._failures += 1
        if self._failures > MOST_FAILURES or isinstance(error, DeviceUnavailable):
            self._lost(error)
        elif self._failures == 1:
            _log.failure("{port}: a read failed, and is repeated", port=self.name)
