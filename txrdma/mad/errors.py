"""
What goes wrong with management datagrams.
"""

from __future__ import annotations

from txrdma.error import RDMAError, Refused
from txrdma.iba.path import IBPath
from txrdma.mad.attributes import Attribute, ManagementClass, RPC
from txrdma.mad.dump import dumped
from txrdma.mad.messages import MADStatus, RMPPStatus


class MADFailure(RDMAError):
    """
    A call by management datagrams failed.

    @ivar rpc: the call.
    @ivar path: where it went.
    @ivar request: its datagram; C{b""} when none was made.
    @ivar reply: what came back; C{b""} when nothing did.
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
        What happened, for people.

        @param level: 0 is one line, 1 names path and headers, 2 shows fields, 3 bytes, too.
        """
        lines = [f"{type(self).__name__}: {self}"]
        if level >= 1:
            lines.append(f"{self.rpc.name} by {self.path}")
        for name, datagram in (("request", self.request), ("reply", self.reply)):
            if datagram and level >= 1:
                lines += [f"{name}: {line}" for line in dumped(datagram, level).splitlines()]
        return "\n".join(lines)


class MADTimeoutError(MADFailure):
    """Nobody answered in time, however often we asked."""


class MADClassError(MADFailure):
    """What came back is no answer to the call: of another class, attribute or length."""


class MADTransferError(MADFailure):
    """
    A long message, of ours or of the answer, did not get through.

    @ivar status: why, as the one said who gave up.
    """

    def __init__(self, message: str, status: RMPPStatus, rpc: RPC, path: IBPath, request: bytes) -> None:
        super().__init__(message, rpc, path, request)
        self.status = status


class MADError(MADFailure, Refused):
    """
    The peer answered with an error.

    @ivar status: as it came; C{words} says it in words.
    """

    def __init__(self, rpc: RPC, path: IBPath, status: int, request: bytes, reply: bytes) -> None:
        words = MADStatus(status).words(rpc.managementClass) or "no reason"
        MADFailure.__init__(self, f"{rpc.name}: status {status:#06x}, {words}", rpc, path, request, reply)
        self.status = status
        self.words = words


class MADRefusal(RDMAError):
    """
    Raised by handlers of requests: answer with this status.

    @ivar payload: what to send back with it; the request's own when None.
    """

    def __init__(self, status: int, reason: str = "", payload: Attribute | None = None) -> None:
        super().__init__(reason or MADStatus(status).words(ManagementClass.SUBN_LID))
        self.status = status
        self.payload = payload
