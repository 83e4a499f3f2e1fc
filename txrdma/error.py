"""What goes wrong in RDMA, a class for each decision that a caller can take."""

from __future__ import annotations


class RDMAError(Exception):
    """The root of what txrdma raises."""


class WireError(RDMAError):
    """
    Bytes that are not what they should be: the peer, or the path, is at fault.

    @ivar layout: the name of the layout that was being read.
    @ivar offset: the byte at which it failed.
    """

    def __init__(self, layout: str, offset: int, reason: str) -> None:
        super().__init__(f"{layout} at byte {offset}: {reason}")
        self.layout = layout
        self.offset = offset


class PeerViolation(RDMAError):
    """The peer violated a protocol."""


class InvalidRequest(RDMAError):
    """The program asked for what the object's state or the specification does not allow: fix it."""


class ProtectionError(RDMAError):
    """A memory key, a range or a right did not fit: nothing was touched."""


class QueueFull(RDMAError):
    """There is no room at present: wait for completions, then try again."""


class ResourceExhausted(RDMAError):
    """The device or the system gives no more of this: close something, or give up."""


class DeviceUnavailable(RDMAError):
    """The device is not there, or it is gone: use another."""


class MalformedDevice(ValueError):
    """A device string is malformed: correct what was configured. No other device is tried instead."""


class Refused(RDMAError):
    """
    The peer answered, and its answer was no.

    @ivar status: the peer's reason, as it came.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
