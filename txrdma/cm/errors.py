"""Errors that only communication management raises."""

from __future__ import annotations

from typing import Final

from txrdma.cm.layouts.messages import checkPrivateData, REJ, RejectReason, SIDRREP, SIDRStatus
from txrdma.error import RDMAError, Refused

_NO_LISTENER: Final = ": no program listens to this port or service there"

_MEANINGS: Final = {
    RejectReason.INVALID_SERVICE_ID: _NO_LISTENER,
    RejectReason.CONSUMER_REJECT: ": its program does not accept it",
}
"""What the reasons that depend on the peer's program mean."""


class PeerSilent(RDMAError):
    """The peer did not answer any retransmission: try again later, or another path."""


class HostUnknown(RDMAError):
    """The host name has no known address: try another name, or try again later."""


class Rejected(Refused):
    """
    The peer rejected the connection.

    C{status} is its L{RejectReason <txrdma.cm.layouts.messages.RejectReason>}.

    @ivar privateData: the bytes that its program sent with it, without zeros at the end.
    @ivar rejection: the REJ itself.
    """

    def __init__(self, rejection: REJ) -> None:
        reason = rejection.reason
        super().__init__(f"the peer rejects the connection: {reason.name}{_MEANINGS.get(reason, '')}", reason)
        self.rejection = rejection
        self.privateData = rejection.privateData.rstrip(b"\0")


class ServiceRefused(Refused):
    """
    The peer refused the resolution of a datagram service.

    C{status} is a L{SIDRStatus <txrdma.cm.layouts.messages.SIDRStatus>}.

    @ivar response: the SIDR_REP itself.
    """

    def __init__(self, response: SIDRREP) -> None:
        status = response.status
        meaning = _NO_LISTENER if status == SIDRStatus.SERVICE_ID_NOT_SUPPORTED else ""
        super().__init__(f"the service is not available: {status.name}{meaning}", status)
        self.response = response


class Rejection(RDMAError):
    """
    Raised by a factory to reject a requested connection.

    @ivar reason: private data of the REJ, at most 148 bytes.
    """

    def __init__(
        self,
        reason: RejectReason = RejectReason.CONSUMER_REJECT,
        privateData: bytes = b"",
        information: bytes = b"",
    ) -> None:
        """
        @param information: see L{txrdma.cm.layouts.rejectinfo.informationFor}; at most 72 bytes.
        @raise txrdma.error.InvalidRequest: one of them is too long.
        """
        checkPrivateData(information, 72, "information")
        checkPrivateData(privateData, 148)
        super().__init__(f"rejected: {reason.name}")
        self.reason, self.privateData, self.information = reason, privateData, information
