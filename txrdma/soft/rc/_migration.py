"""
The migration state of a queue pair with an alternate path.

Follows InfiniBand Architecture vol. 1, 17.2.8 (automatic path migration): the MigReq bit of every packet
reports whether the sender has migrated; both ends are armed when both have cleared it.

Unlike InfiniBand, UDP may reorder packets. Therefore a MigReq on the path in use was sent before the peer was
ready, and is ignored; one on the alternate path is accepted even if the peer is not known to be ready.
"""

from __future__ import annotations

from txrdma.iba.verbs import MigrationState


class Migration:
    """The migration state of one queue pair."""

    def __init__(self) -> None:
        self.state = MigrationState.MIGRATED

    @property
    def request(self) -> bool:
        """The migration request bit (MigReq) of packets to the peer."""
        return self.state is MigrationState.MIGRATED

    def packetReceived(self, request: bool, onPath: bool, onAlternate: bool) -> MigrationState | None:
        """
        Return the new state after a packet of the peer; None if it does not change.

        @param request: the packet's MigReq.
        @param onPath: whether it arrived by the path in use; C{onAlternate}: by the alternate one.
        """
        if self.state is MigrationState.MIGRATED:
            return None
        if request:
            return MigrationState.MIGRATED if onAlternate else None
        if self.state is MigrationState.REARM and onPath:
            return MigrationState.ARMED
        return None
