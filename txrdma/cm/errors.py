"""
Errors of communication management that no other part of txrdma has.
"""

from __future__ import annotations

from txrdma.error import RDMAError


class PeerSilent(RDMAError):
    """The peer did not answer, however often it was asked: try again later, or another way."""
