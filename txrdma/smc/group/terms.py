"""
The terms of one end of a connection over SMC-R, as the messages of its handshake name them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from txrdma.iba.types import GID, MACAddress, QPN, RKey
from txrdma.smc.handshake._offer import Agreement
from txrdma.smc.wire.clc import Accept, AnswerV2, Confirm

_AnyAnswer = TypeVar("_AnyAnswer", Accept, Confirm)


@dataclass(frozen=True, slots=True)
class Terms:
    """
    Our end of a connection (RFC 7609, A.2.2): an L{Accept} or a L{Confirm} is made from it.

    @ivar index: of the element in its RMB, from 1.
    @ivar token: the alert token, which the peer puts into each CDC message to us.
    @ivar sizeCode: the element has 16 KiB times two to its power.
    @ivar mtu: the most that our port takes.
    @ivar address: where the RMB begins.
    @ivar agreement: what the two ends of the link group have agreed on.
    @ivar psn: the first packet sequence number that we send.
    """

    peerID: bytes
    gid: GID
    mac: MACAddress
    qpn: QPN
    rkey: RKey
    index: int
    token: int
    sizeCode: int
    mtu: int
    address: int
    psn: int
    agreement: Agreement

    def accept(self, firstContact: bool, hostName: bytes) -> Accept:
        """
        The server's answer to a Proposal.

        @param hostName: of this host; version 2 tells it.
        """
        return self._answer(Accept, self.mtu, firstContact, self.agreement.extension(firstContact, hostName))

    def confirm(self, accept: Accept, hostName: bytes) -> Confirm:
        """The client's answer to an Accept."""
        isFirst = accept.firstContact
        extension = self.agreement.extension(isFirst, hostName, (self.gid,))
        return self._answer(Confirm, min(accept.mtu, self.mtu), isFirst, extension)

    def _answer(
        self, kind: type[_AnyAnswer], mtu: int, firstContact: bool, extension: AnswerV2 | None
    ) -> _AnyAnswer:
        return kind(
            peerID=self.peerID,
            gid=self.gid,
            mac=self.mac,
            qpn=self.qpn,
            rkey=self.rkey,
            index=self.index,
            token=self.token,
            sizeCode=self.sizeCode,
            mtu=mtu,
            address=self.address,
            psn=self.psn,
            firstContact=firstContact,
            version=self.agreement.version,
            v2=extension,
        )
