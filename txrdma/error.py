"""Errors of RDMA: one class for each decision that a caller can make."""

from __future__ import annotations


class RDMAError(Exception):
    """Base class of the errors that txrdma raises."""


class WireError(RDMAError):
    """
    Received bytes are malformed: the peer, or the path, is at fault.

    @ivar layout: the name of the layout that was being decoded.
    @ivar offset: the offset in bytes at which decoding failed.
    """

    def __init__(self, layout: str, offset: int, reason: str) -> None:
        super().__init__(f"{layout} at byte {offset}: {reason}")
        self.layout = layout
        self.offset = offset


class PeerViolation(RDMAError):
    """The peer violated a protocol."""


class InvalidRequest(RDMAError):
    """The object's state or the specification does not allow this request: fix the program."""


class ProtectionError(RDMAError):
    """A memory key, a range or an access right is invalid: no memory was accessed."""


class QueueFull(RDMAError):
    """The queue is full at present: wait for completions, then try again."""


class ResourceExhausted(RDMAError):
    """The device or the system has no more of this resource: close something, or give up."""


class DeviceUnavailable(RDMAError):
    """The device does not exist, or was removed: use another."""


class MalformedDevice(ValueError):
    """A device string is malformed: correct the configuration. No other device is tried instead."""


class Refused(RDMAError):
    """
    The peer has refused.

    @ivar status: the peer's reason, unchanged.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
