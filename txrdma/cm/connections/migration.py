"""
The alternate path of a connection's queue pair: from the moment when both ends are ready for it.

Follows InfiniBand Architecture vol. 1, 17.2.8. A queue pair is armed when it has heard from that of the peer
that both are ready; a write of no bytes makes that happen where nothing else is to be sent.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred

from txrdma.cm.connections.adapter import Adapter
from txrdma.cm.connections.queuepairs import addressOf
from txrdma.cm.connections.sendqueue import SendQueue
from txrdma.cm.layouts.messages import CMPath
from txrdma.error import DeviceUnavailable
from txrdma.iba.verbs import MigrationState, Operation, QPAttributes, QPState, SendRequest
from txrdma.interfaces import IQueuePair


class PathMigration:
    """Makes a queue pair ready to migrate, and notices that it has."""

    def __init__(self, adapter: Adapter, pkey: int, sends: SendQueue) -> None:
        self._adapter, self._pkey, self._sends = adapter, pkey, sends
        self._isArmed = self._isOver = False
        self._probe = 0
        self._arming: Deferred[CMPath] | None = None

    def arm(self, pair: IQueuePair, path: CMPath) -> None:
        """
        Have a queue pair be ready to migrate, and the peer's notice it, though there may be nothing to send.

        @raise txrdma.error.RDMAError: the device does not take the path.
        """
        port, index = self._adapter.requireGID(path.localGID)
        pair.modify(
            QPAttributes(
                alternateAddress=addressOf(path, port, index),
                alternatePKeyIndex=self._adapter.requirePKey(port, self._pkey),
                alternateTimeout=path.localACKTimeout,
                migrationState=MigrationState.REARM,
            )
        )
        self._isArmed = True
        self._probe = self._sends.postOverhead(pair, SendRequest(0, Operation.RDMA_WRITE))

    def hasMigrated(self, pair: IQueuePair) -> bool:
        """Tell, once, whether the queue pair has migrated since it was armed."""
        if not self._isArmed or pair.state is not QPState.RTS:
            return False
        if pair.query().migrationState is not MigrationState.MIGRATED:
            return False
        self._isArmed = False
        return True

    def whenArmed(self, path: CMPath) -> CMPath | Deferred[CMPath]:
        """The path, once the queue pair has heard from that of the peer that both are ready."""
        if not self._probe or self._isOver:
            return path

        def cancel(_: Deferred[CMPath]) -> None:
            self._arming = None

        self._arming = Deferred(cancel)
        return self._arming.addCallback(lambda _: path)

    def completed(self, identifier: int, path: CMPath) -> None:
        """
        Hear that a request has completed: perhaps the one by which the queue pair is armed.

        @param path: the one in use.
        """
        if identifier != self._probe:
            return
        self._probe = 0
        arming, self._arming = self._arming, None
        if arming is not None:
            arming.callback(path)

    def end(self) -> None:
        """Fail what waits: the connection is over."""
        self._isOver = True
        arming, self._arming = self._arming, None
        if arming is not None:
            arming.errback(DeviceUnavailable("the connection ended before the alternate path was armed"))
