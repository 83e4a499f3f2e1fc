"""
The alternate path of a connection's queue pair, once both ends have agreed on it.

Follows InfiniBand Architecture vol. 1, 17.2.8. A queue pair is armed by the first packet of a peer that is
ready, too. An empty write causes packets in both directions if the application sends nothing.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from txrdma.cm.connections.adapter import Adapter
from txrdma.cm.connections.queuepairs import leastTimeout
from txrdma.cm.connections.sendqueue import SendQueue
from txrdma.cm.layouts.messages import CMPath
from txrdma.cm.layouts.paths import pathOf
from txrdma.error import DeviceUnavailable, InvalidRequest, RDMAError
from txrdma.iba.path import IBPath
from txrdma.iba.types import PKey
from txrdma.iba.verbs import MigrationState, Operation, QPAttributes, QPState, SendRequest
from txrdma.interfaces import IDisarmable, IQueuePair
from txrdma.kit.logs import errorText, RateLimitedLogger
from txrdma.kit.values import replace

_log = Logger()
_rateLimited = RateLimitedLogger(_log)


class PathMigration:
    """
    Arms a queue pair for migration, and detects when it has migrated.

    @ivar former: the path that was in use before the last migration; None before the first one.
    """

    __slots__ = (
        *("_adapter", "_arming", "_isArmed", "_isOver", "_isProbing", "_pkey", "_probe", "_refusal"),
        *("_sends", "former"),
    )

    def __init__(self, adapter: Adapter, pkey: int, sends: SendQueue) -> None:
        self._adapter, self._pkey, self._sends = adapter, pkey, sends
        self._isArmed = self._isOver = self._isProbing = False
        self._refusal: RDMAError | None = None
        self._probe = 0
        self._arming: list[Deferred[CMPath]] = []
        self.former: CMPath | None = None

    def choose(self, route: str, path: IBPath | CMPath | None, primary: CMPath) -> CMPath | Deferred[CMPath]:
        """
        Return the path to load: the given one, else the former one, or what L{Adapter.findAlternate} finds.

        Both ends of the former path are addresses of the connection, so it can be used again after a repair.

        @param route: the device's name for the path of the data.
        @param primary: the path in use.
        @return: the path, or a Deferred that fails with L{InvalidRequest} if there is no other path.
        @raise InvalidRequest: there is no path migration.
        """
        device = self._adapter.device
        if route == "shared-memory":
            raise InvalidRequest(
                "shared memory has no alternate paths; use a software device with route=rocev2"
            )
        if not device.attributes.canMigrate:
            raise InvalidRequest(f"{device.name} has no path migration")
        if path is None and self.former is not None and self._adapter.findGID(self.former.localGID):
            return self.former
        if path is None:
            used = replace(pathOf(primary), pkey=PKey(self._pkey))
            return self._adapter.findAlternate(used).addCallback(self._found)
        return self._adapter.cmPathOf(path) if isinstance(path, IBPath) else path

    def _found(self, path: IBPath | None) -> CMPath:
        if path is None:
            raise InvalidRequest(f"{self._adapter.device.name} has no other path to this address of the peer")
        return self._adapter.cmPathOf(path)

    def accept(self, pair: IQueuePair, path: CMPath, primary: CMPath) -> bool:
        """Set the alternate path that the peer at C{primary} offers; return whether the device accepts it."""
        try:
            self.load(pair, path)
        except RDMAError as error:
            _rateLimited.info(
                primary.remoteGID,
                "{pair} cannot migrate to {path}: {error}",
                pair=pair,
                path=path,
                error=errorText(error),
            )
            return False
        return True

    def load(self, pair: IQueuePair, path: CMPath) -> None:
        """
        Set the alternate path of a queue pair.

        @raise txrdma.error.RDMAError: the device refuses the path.
        """
        address = self._adapter.addressOf(path)
        pair.modify(
            QPAttributes(
                alternateAddress=address,
                alternatePKeyIndex=self._adapter.requirePKey(address.port, self._pkey),
                alternateTimeout=max(path.localACKTimeout, leastTimeout(self._adapter.device.attributes)),
                migrationState=MigrationState.REARM,
            )
        )
        self._isArmed = True

    def arm(self, pair: IQueuePair, path: CMPath) -> None:
        """
        Set the alternate path of a queue pair, and send an empty write to the peer.

        If the device refuses the path, that is logged, and reported by L{whenArmed}.
        """
        try:
            self.load(pair, path)
            self._isProbing, self._probe = True, 0
            self.proceed(pair)
            self._refusal = None
        except RDMAError as error:
            _log.warn(
                "{pair} cannot migrate to its alternate path: {error}", pair=pair, error=errorText(error)
            )
            self._isProbing = bool(self._arming)  # of an earlier path
            self._refusal = error

    @property
    def isDue(self) -> bool:
        """Whether the empty write is not posted yet."""
        return self._isProbing and not self._probe

    def proceed(self, pair: IQueuePair) -> None:
        """
        Post the empty write if that was not done, as soon as the send queue has an entry.

        @raise txrdma.error.RDMAError: the queue pair takes no more requests.
        """
        if self.isDue:
            self._probe = self._sends.postOverhead(pair, SendRequest(0, Operation.RDMA_WRITE))

    def disarm(self, pair: IQueuePair) -> None:
        """Give up the alternate path of a queue pair, since another one is about to be loaded."""
        IDisarmable(pair).disarm()
        self._isArmed = self._isProbing = False
        self._fail(InvalidRequest("the alternate path is being replaced"))

    def hasMigrated(self, pair: IQueuePair) -> bool:
        """Return whether the queue pair has migrated since it was armed; True only once."""
        if not self._isArmed or pair.state is not QPState.RTS:
            return False
        if pair.query().migrationState is not MigrationState.MIGRATED:
            return False
        self._isArmed = False
        return True

    def whenArmed(self, path: CMPath) -> CMPath | Deferred[CMPath]:
        """
        Return the path when the queue pair is armed.

        @raise txrdma.error.RDMAError: the device has refused the path.
        """
        if self._refusal is not None:
            raise self._refusal
        if not self._isProbing or self._isOver:
            return path

        def cancel(_: Deferred[CMPath]) -> None:
            if arming in self._arming:
                self._arming.remove(arming)

        arming: Deferred[CMPath] = Deferred(cancel)
        self._arming.append(arming)
        return arming.addCallback(lambda _: path)

    def completed(self, identifier: int, path: CMPath) -> None:
        """
        Handle the completion of a request: after the empty write the queue pair is armed.

        @param path: the path in use.
        """
        if identifier != self._probe:
            return
        self._isProbing = False
        arming, self._arming = self._arming, []
        for each in arming:
            if not each.called:  # cancelled by a callback of another one
                each.callback(path)

    def end(self) -> None:
        """Fail the Deferreds of C{whenArmed}, since the connection has ended."""
        self._isOver = True
        self._fail(DeviceUnavailable("the connection ended before the alternate path was armed"))

    def _fail(self, reason: RDMAError) -> None:
        arming, self._arming = self._arming, []
        for each in arming:
            if not each.called:
                each.errback(reason)
