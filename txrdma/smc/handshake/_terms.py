"""
Checks of a peer's CLC messages: a client in a subnet of ours, an answer free of contradictions.

Follows RFC 7609, 4.3.1, A.2.2 and A.2.3.
"""

from __future__ import annotations

from txrdma.iba.types import MTU
from txrdma.smc.wire.clc import Accept, Confirm, Diagnosis, Proposal
from txrdma.values import frozen


@frozen
class Subnets:
    """
    Where our end of the TCP connection lives, for the check that version 1 makes (RFC 7609, 4.3.1).

    @ivar ipv4: the network and the length of its prefix.
    @ivar ipv6: prefixes, of 16 bytes, and their lengths.
    """

    ipv4: tuple[int, int] | None = None
    ipv6: tuple[tuple[bytes, int], ...] = ()

    def shares(self, proposal: Proposal) -> bool:
        """Whether the client is in a subnet of ours."""
        if proposal.ipv6Prefixes:
            return any(
                _samePrefix(each.prefix, each.length, prefix, length)
                for each in proposal.ipv6Prefixes
                for prefix, length in self.ipv6
            )
        if self.ipv4 is None:
            return False
        network, length = self.ipv4
        if length != proposal.prefixLength or length > 32:
            return False
        return not (network ^ proposal.subnet) >> (32 - length)


def _samePrefix(theirs: bytes, theirLength: int, ours: bytes, ourLength: int) -> bool:
    if theirLength != ourLength or not 0 < ourLength <= 128:
        return False
    if theirs[0] == 0xFE and theirs[1] & 0xC0 == 0x80:
        return False  # everybody is in the link-local subnet
    return not (int.from_bytes(theirs, "big") ^ int.from_bytes(ours, "big")) >> (128 - ourLength)


def objectionTo(answer: Accept | Confirm) -> Diagnosis | None:
    """The reason to decline the peer's end of a connection, None when there is none."""
    if answer.version != 1:
        return Diagnosis.VERSMISMAT
    end = answer.address + answer.size * answer.index
    if (
        not answer.index
        or not answer.token
        or not answer.qpn
        or answer.mtu not in MTU.__members__.values()
        or end > 1 << 64
    ):
        return Diagnosis.CNFERR
    return None
