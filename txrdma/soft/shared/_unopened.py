"""
The route of a queue pair in shared memory that has not been used.

A lane takes two boxes of shared memory. Most connections of a large server are idle, so a queue pair gets its
lane when it or its peer posts the first request. Requests wait while many others are being opened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from txrdma.error import InvalidRequest, RDMAError, ResourceExhausted
from txrdma.iba.types import QPN
from txrdma.iba.verbs import (
    AsyncEventKind,
    Completion,
    CompletionOpcode,
    Operation,
    QPState,
    SendRequest,
    Status,
)
from txrdma.soft.core.pieces import copied, inlineLength
from txrdma.soft.core.route import Route
from txrdma.soft.shared._outgoing import completionOf

if TYPE_CHECKING:
    from txrdma.soft.core.queuepair import SoftQueuePair
    from txrdma.soft.shared.sharedqueuepair import SharedQueuePair


class UnopenedLane(Route):
    """
    Opens a lane on first use, and is replaced by it.

    @ivar destination: the peer's queue pair; C{hasPeerLeft}: it has ended.
    """

    name = "shared-memory"
    polled = False

    def __init__(
        self,
        owner: SoftQueuePair,
        destination: QPN,
        mayOpen: Callable[[UnopenedLane], bool],
        make: Callable[[UnopenedLane], SharedQueuePair],
        closed: Callable[[UnopenedLane], None],
    ) -> None:
        """
        @param mayOpen: returns whether the lane may be opened now; otherwise requests wait for L{open}.
        @param make: connects the queue pair; raises L{txrdma.error.ResourceExhausted}.
        @param closed: called when the queue pair is closed or fails before it has a lane.
        """
        self.owner, self.destination = owner, destination
        self._mayOpen, self._make, self._closed = mayOpen, make, closed
        self.hasPeerLeft = False
        self._waiting: Sequence[SendRequest] = ()

    @property
    def direct(self) -> object | None:
        """The opened lane, for writing without requests; None while there is no memory to open it."""
        try:
            return self.open().lane.direct
        except ResourceExhausted:
            return None

    def open(self) -> SharedQueuePair:
        """
        Open the lane.

        @raise txrdma.error.ResourceExhausted: there is no memory for it; nothing has changed.
        """
        opened = self._make(self)
        try:
            self.owner.routeOpened(opened.lane)
        except BaseException:
            opened.lane.close()
            self.owner.failed(AsyncEventKind.QP_FATAL)  # the peer has failed, since the lane was closed
            raise
        waiting, self._waiting = self._waiting, ()
        if waiting:
            self._post(opened, waiting)
        if self.hasPeerLeft:
            opened.peerEnded(None)
        return opened

    def post(self, requests: Sequence[SendRequest]) -> None:
        if not self._waiting:
            if not self.hasPeerLeft and all(map(_isEmptyWrite, requests)):
                self._complete(requests)
                return
            if self.hasPeerLeft or self._mayOpen(self):  # without a peer, the lane fails them
                self._post(self.open(), requests)
                return
        self._waiting = (*self._waiting, *map(copied, requests))

    def _post(self, opened: SharedQueuePair, requests: Sequence[SendRequest]) -> None:
        """Post requests to an opened lane; flush them if the queue pair has failed, but not its peer."""
        owner = self.owner
        if owner.state is not QPState.ERR or opened.lane.hasPeerEnded():
            opened.lane.post(requests)
            return
        owner.retired(len(requests))
        for each in requests:
            opcode = completionOf(each)
            owner.sendCompleted(Completion(each.identifier, Status.WR_FLUSH_ERR, opcode, owner.number))

    def _complete(self, requests: Sequence[SendRequest]) -> None:
        """Complete RDMA WRITEs of no bytes, which only probe whether the peer exists: it does."""
        owner = self.owner
        owner.retired(len(requests))
        for request in requests:
            if request.signaled:
                opcode = CompletionOpcode.RDMA_WRITE
                owner.sendCompleted(Completion(request.identifier, Status.SUCCESS, opcode, owner.number))

    def peerEnded(self, event: AsyncEventKind | None) -> None:
        """Handle the end of the peer's queue pair; with an event, of its process."""
        self.hasPeerLeft = True
        if event is not None:
            self.owner.failed(event)
        elif self._waiting:
            try:
                self.open()  # the lane fails the requests
            except RDMAError:
                self.owner.failed(None)

    def flush(self) -> list[tuple[int, CompletionOpcode]]:
        self.close()
        waiting, self._waiting = self._waiting, ()
        return [(each.identifier, completionOf(each)) for each in waiting]

    def attributesChanged(self) -> None:
        """The lane reads the attributes when it is opened."""

    def migrate(self) -> None:
        raise InvalidRequest("shared memory has no alternate path")

    def close(self) -> None:
        self._closed(self)


def _isEmptyWrite(request: SendRequest) -> bool:
    if request.operation is not Operation.RDMA_WRITE or any(each.length for each in request.segments):
        return False
    return inlineLength(request.inline) == 0
