"""The error that operations of groups raise."""

from __future__ import annotations

from txrdma.error import RDMAError


class GroupFailed(RDMAError):
    """
    A member of a group has ended or failed, so no operation of the group can complete any more.

    @ivar rank: the member that has failed, or None if it is not known.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank
