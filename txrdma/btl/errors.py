"""
Errors of the byte transfer layer that no other part of txrdma has.
"""

from __future__ import annotations

from txrdma.error import RDMAError


class Unreachable(RDMAError):
    """Datagrams of some size do not pass between two modules: check the interface and the MTU it names."""


class MessageFailed(RDMAError):
    """A message will not be sent again; unless its peer has refused it, it may have arrived."""


class PeerLost(RDMAError):
    """The peer has ended without a word, or answers no more."""
