"""Errors of calls by management datagrams."""

from __future__ import annotations

from txrdma.error import RDMAError, Refused
from txrdma.iba.path import IBPath
from txrdma.iba.types import DEFAULT_PKEY
from txrdma.mad.layouts.attributes import Attribute, ManagementClass, RPC
from txrdma.mad.layouts.dump import dumped
from txrdma.mad.layouts.messages import MADStatus, RMPPStatus


class MADFailure(RDMAError):
    """
    A call by management datagrams failed.

    @ivar rpc: the call.
    @ivar path: path of the request.
    @ivar request: its datagram; C{b""} if none was made.
    @ivar reply: datagram of the answer; C{b""} without one.
    """

    def __init__(
        self, message: str, rpc: RPC, path: IBPath, request: bytes = b"", reply: bytes = b""
    ) -> None:
        super().__init__(message)
        self.rpc = rpc
        self.path = path
        self.request = request
        self.reply = reply

    def detailed(self, level: int = 1) -> str:
        """
        Return a readable message with details.

        @param level: 0 is one line, 1 adds path and headers, 2 fields, 3 bytes.
        """
        lines = [f"{type(self).__name__}: {self}"]
        if level >= 1:
            lines.append(f"{self.rpc.name} by {self.path}")
        for name, datagram in (("request", self.request), ("reply", self.reply)):
            if datagram and level >= 1:
                lines += [f"{name}: {line}" for line in dumped(datagram, level).splitlines()]
        return "\n".join(lines)


class MADTimeoutError(MADFailure):
    """The peer did not answer in time, after all retries."""


def silenceHint(rpc: RPC, path: IBPath, mkey: int) -> str:
    """Return a reason other than absence for a silent node (IBA 14.2.4, 10.9), as the end of a message."""
    if rpc.managementClass is ManagementClass.SUBN_LID:
        return f"; a port whose M_Key is not {mkey:#x} may be silent, too"
    if path.pkey != DEFAULT_PKEY:
        return f"; a port outside of partition {path.pkey:#06x} is silent, too"
    return ""


class MADClassError(MADFailure):
    """The received response does not match the call: it has another class, attribute or length."""


class MADTransferError(MADFailure):
    """
    An RMPP transfer, of the request or of the answer, has failed.

    @ivar status: reason for its end.
    @ivar byPeer: True if the peer has ended the transfer.
    """

    def __init__(self, status: RMPPStatus, byPeer: bool, rpc: RPC, path: IBPath, request: bytes) -> None:
        end = "the peer" if byPeer else "this end"
        message = f"{rpc.name}: {end} aborted the RMPP transfer: {status.meaning} ({status.name})"
        super().__init__(message, rpc, path, request)
        self.status = status
        self.byPeer = byPeer


class MADError(MADFailure, Refused):
    """
    The peer answered with an error.

    @ivar status: MAD status of the answer; C{words} is its meaning in words.
    """

    def __init__(
        self, rpc: RPC, path: IBPath, status: int, request: bytes, reply: bytes, further: str = ""
    ) -> None:
        """@param further: text that is appended to the meaning of the status."""
        words = (MADStatus(status).words(rpc.managementClass) or "no reason") + further
        MADFailure.__init__(self, f"{rpc.name}: status {status:#06x}, {words}", rpc, path, request, reply)
        self.status = status
        self.words = words


class MADRefusal(RDMAError):
    """
    Raised by handlers of requests: answer with this status.

    @ivar payload: attribute of the answer; None for that of the request.
    """

    def __init__(self, status: int, reason: str = "", payload: Attribute | None = None) -> None:
        super().__init__(reason or MADStatus(status).words(ManagementClass.SUBN_LID))
        self.status = status
        self.payload = payload
