"""
The migration state of a queue pair with an alternate path.

Follows InfiniBand Architecture vol. 1, 17.2.8 (automatic path migration): both ends say in the MigReq bit of
every packet whether they have migrated, and hear from the other's when both are ready for it.

Packets of UDP overtake each other, those of InfiniBand don't. So a MigReq that comes on the path in use is
from before the peer was ready, and changes nothing; and one on the alternate path is believed before we have
heard that the peer is ready, because it must have been.
"""

from __future__ import annotations

from txrdma.iba.verbs import MigrationState


class Migration:
    """
    The state of one queue pair.

    @ivar state: see L{MigrationState}.
    """

    def __init__(self) -> None:
        self.state = MigrationState.MIGRATED

    @property
    def request(self) -> bool:
        """The migration request bit (MigReq) of the packets that we send."""
        return self.state is MigrationState.MIGRATED

    def heard(self, request: bool, onPath: bool, onAlternate: bool) -> MigrationState | None:
        """
        The state that a packet of the peer leads to, or None if it changes nothing.

        @param request: its MigReq.
        @param onPath: it came by the path in use; C{onAlternate}: by the alternate one.
        """
        if self.state is MigrationState.MIGRATED:
            return None
        if request:
            return MigrationState.MIGRATED if onAlternate else None
        if self.state is MigrationState.REARM and onPath:
            return MigrationState.ARMED
        return None
