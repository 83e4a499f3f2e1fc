"""
Queue pairs: their states, the posting of requests, and the flushing of requests at the end.

Follows InfiniBand Architecture vol. 1, 10.2.4, 10.3.1 and 10.8.

Theory of operation. A queue pair checks requests, counts entries of its send queue (C{free}), and passes
requests to its L{route <txrdma.soft.core.route.Route>}, which the host makes at the change to RTR. The route
transfers the bytes; it reports completions by C{sendCompleted} and C{receiveCompleted}, entries that are free
again by C{retired}, and errors by C{failed}. Sends that are posted in SQD are held until RTS; those posted
in SQE or ERR are flushed at once. A change to ERR flushes each uncompleted request once: those of the route,
held ones, and then receives, unless they are shared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence, Sized
from contextlib import ExitStack
from itertools import islice
from typing import cast, Final

from zope.interface import implementer

from twisted.logger import Logger

from txrdma.error import InvalidRequest, QueueFull
from txrdma.iba.types import GID, QPN
from txrdma.iba.verbs import (
    AsyncEventKind,
    Capacity,
    Completion,
    COMPLETION_OF,
    CompletionOpcode,
    MigrationState,
    Operation,
    QPAttributes,
    QPKind,
    QPState,
    ReceiveRequest,
    SendRequest,
    Status,
)
from txrdma.interfaces import (
    AsyncEvent,
    IDirectDatagrams,
    IDirectLane,
    IDisarmable,
    IMulticast,
    IQueuePair,
    ITrimmable,
)
from txrdma.kit.values import frozen, replace
from txrdma.soft.core.completion import SoftCompletionQueue
from txrdma.soft.core.directdatagrams import DirectDatagramRoute, DirectDatagrams
from txrdma.soft.core.memory import Domain, KeyTable
from txrdma.soft.core.pieces import copied, inlineLength
from txrdma.soft.core.route import Route
from txrdma.soft.core.sharedreceives import SoftSharedReceiveQueue
from txrdma.soft.core.transitions import checkMigration, transition

_log = Logger()

_RESET, _INIT, _RTR, _RTS, _SQD, _SQE, _ERR = QPState
_NO_ATTRIBUTES: Final = QPAttributes()

_SEND: Final = CompletionOpcode.SEND
# Plain integers: these are compared for every request.
_LAST_INLINE: Final = int(Operation.SEND_WITH_IMMEDIATE)
_LAST: Final = int(Operation.RDMA_READ)
_ATOMICS: Final = (Operation.COMPARE_AND_SWAP, Operation.FETCH_AND_ADD)
_ATOMIC_BYTES: Final = 8


@frozen
class DeviceCalls:
    """
    What a queue pair needs of the software device that has made it.

    @ivar device: the device, for the log.
    @ivar connect: returns the route for a queue pair that changes to RTR, by its C{kind} and C{attributes}.
    @ivar admit: checks requested and current attributes against the device; raises L{InvalidRequest}.
    @ivar notify: delivers an event to listeners, in a later reactor iteration.
    @ivar forget: removes a closed queue pair.
    """

    device: object
    keys: KeyTable
    connect: Callable[[SoftQueuePair], Route]
    admit: Callable[[QPAttributes, QPAttributes], None]
    notify: Callable[[AsyncEvent], None]
    forget: Callable[[SoftQueuePair], None]


@implementer(IQueuePair, IDisarmable, ITrimmable)
class SoftQueuePair:
    """
    A queue pair of a software device (IBA 10.3).

    @ivar receives: the receive queue, or that of C{shared}. It contains the posted objects themselves, which
        must not change before their completion.
    @ivar free: number of requests that fit into the send queue.
    @ivar shared: the shared receive queue, if there is one.
    """

    def __init__(
        self,
        calls: DeviceCalls,
        domain: Domain,
        kind: QPKind,
        number: QPN,
        send: SoftCompletionQueue,
        receive: SoftCompletionQueue,
        capacity: Capacity,
        shared: SoftSharedReceiveQueue | None = None,
    ) -> None:
        self.kind = kind
        self.number = number
        self.capacity = capacity
        self.domain = domain
        self.keys = calls.keys
        self.state = _RESET
        self.attributes = _NO_ATTRIBUTES
        self.shared = shared
        self.receives: deque[ReceiveRequest] = deque() if shared is None else shared.receives
        self.sendQueue = send
        self.receiveQueue = receive
        # Methods of the queues themselves, since these are called for every message.
        self.sendCompleted: Callable[[Completion], None] = (
            send.push if kind is QPKind.RC else self._datagramCompleted
        )
        self.receiveCompleted: Callable[[Completion, bool], None] = receive.push
        self._calls = calls
        self._route: Route | None = None
        self.free = capacity.maxSend
        self._held: list[SendRequest] = []
        self._drainReported = False
        self._closed = False
        self._direct: DirectDatagrams | None = None
        self._maxSegments = capacity.maxSendSegments
        self._maxInline = capacity.maxInline
        self._checkQueues()
        with ExitStack() as undo:
            undo.callback(self._leaveQueues)
            send.join(self.failed)
            receive.join(self.failed)
            if shared is not None:
                shared.join(self.failed, self.sharedPosted)
            undo.pop_all()

    def __repr__(self) -> str:
        return f"<SoftQueuePair {self.kind.name} {self.number:#08x} {self.state.name} {self.route}>"

    @property
    def route(self) -> str:
        return "" if self._route is None else self._route.name

    @property
    def rewinds(self) -> int:
        return 0 if self._route is None else self._route.rewinds

    # Posting.

    def postSend(self, requests: Sequence[SendRequest]) -> None:
        count = len(requests)
        if self.state is not _RTS or self.kind is not QPKind.RC:
            if self.state is not _RTS or not self._arePlainDatagrams(requests) or count > self.free:
                self._postUnusual(requests)
                return
        else:
            if count > self.free:
                raise QueueFull(f"{count} requests for {self.free} free places in the send queue")
            # All are checked before the first is posted: the list is refused as a whole.
            for request in requests:  # as in _checkForm, whose call would add 10 % to a message of 64 bytes
                inline = request.inline
                if inline:
                    if request.operation > _LAST_INLINE or request.segments:
                        raise _malformed(request, self._maxSegments)
                    length = 0
                    for piece in inline:  # as in inlineLength
                        if type(piece) is bytes:
                            length += len(piece)
                        else:
                            length += piece.nbytes if type(piece) is memoryview else inlineLength([piece])
                    if length > self._maxInline:
                        raise InvalidRequest(f"more than {self._maxInline} bytes inline")
                elif request.operation > _LAST or len(request.segments) > self._maxSegments:
                    if not _isAtomic(request):
                        raise _malformed(request, self._maxSegments)
        self.free -= count
        try:
            self._route.post(requests)  # type: ignore[union-attr]  # there is a route in RTS
        except BaseException:  # a field of a request has a wrong type: none is posted
            self.retired(count)
            raise

    def postReceive(self, requests: Sequence[ReceiveRequest]) -> None:
        receives = self.receives
        if self.shared is not None:
            raise InvalidRequest("this queue pair takes its receives from a shared queue: post them there")
        if self.state is _RESET or self._closed:
            raise InvalidRequest("receives can be posted from INIT on")
        if len(receives) + len(requests) > self.capacity.maxReceive:
            raise QueueFull(f"{len(requests)} requests for a receive queue with {len(receives)} in it")
        most = self.capacity.maxReceiveSegments
        for request in requests:
            if len(request.segments) > most:
                raise InvalidRequest(f"receive {request.identifier} has more than {most} segments")
        receives.extend(requests)
        if self.state is _ERR:
            self._flushReceives()
        elif self._route is not None:
            self._route.receivesPosted()

    def _postUnusual(self, requests: Sequence[SendRequest]) -> None:
        """Post datagrams that need checks, or in states other than RTS."""
        if self._closed or self.state in (_RESET, _INIT, _RTR):
            state = "a closed queue pair" if self._closed else f"{self.state.name}, before RTS"
            raise InvalidRequest(f"sends can't be posted in {state}")
        for request in requests:
            self._checkForm(request)
        if self.state in (_SQE, _ERR):
            for request in requests:
                self._flushed(request.identifier, COMPLETION_OF[request.operation])
            return
        if len(requests) > self.free:
            raise QueueFull(f"{len(requests)} requests for {self.free} free places in the send queue")
        if self.state is _SQD:
            held = [copied(request) for request in requests]
            self.free -= len(held)
            self._held += held
            return
        self.free -= len(requests)
        try:
            self._postDatagrams(requests)
        except BaseException:
            self.retired(len(requests))
            raise

    def _postDatagrams(self, requests: Sequence[SendRequest]) -> None:
        if self.state is _RTS and self._route is not None:
            self._route.post(requests)
            return
        for request in requests:  # an earlier one has failed
            self.free += 1
            self._flushed(request.identifier, _SEND)

    def _arePlainDatagrams(self, requests: Sequence[SendRequest]) -> bool:
        """Return whether these are valid datagrams without immediate data, the usual case."""
        port, most, domain = self.attributes.port, self._maxInline, self.domain
        try:
            for request in requests:
                address, inline = request.address, request.inline
                if request.operation is not Operation.SEND or address is None or address.address.port != port:
                    return False
                if address.domain is not domain:  # type: ignore[attr-defined]  # see below
                    return False
                if inline:
                    length = 0
                    for piece in inline:  # as in inlineLength
                        if type(piece) is bytes:
                            length += len(piece)
                        else:
                            length += piece.nbytes if type(piece) is memoryview else inlineLength([piece])
                    if request.segments or length > most:
                        return False
                elif len(request.segments) > self._maxSegments:
                    return False
        except AttributeError:  # the address handle of another kind of device
            return False
        return True

    def _checkForm(self, request: SendRequest) -> None:
        """Check one request; raises L{InvalidRequest}. C{postSend} inlines the part for RC."""
        if request.inline:
            if request.operation > _LAST_INLINE or request.segments:
                raise _malformed(request, self._maxSegments)
            if inlineLength(request.inline) > self._maxInline:
                raise InvalidRequest(f"more than {self._maxInline} bytes inline")
        elif request.operation > _LAST or len(request.segments) > self._maxSegments:
            if not _isAtomic(request):
                raise _malformed(request, self._maxSegments)
        if self.kind is QPKind.UD:
            if request.operation not in (Operation.SEND, Operation.SEND_WITH_IMMEDIATE):
                raise InvalidRequest(f"{request.operation!r} can't be done by datagrams")
            if request.address is None:
                raise InvalidRequest(f"datagram {request.identifier} has no address")
            if getattr(request.address, "domain", None) is not self.domain:
                raise InvalidRequest(
                    f"{request.address!r} is not an address handle of this domain, or closed"
                )
            if request.address.address.port != self.attributes.port:
                raise InvalidRequest(f"the address of datagram {request.identifier} is of another port")

    # States.

    def modify(self, attributes: QPAttributes) -> None:
        if self._closed:
            raise InvalidRequest("the queue pair is closed")
        before, current = self.attributes, self.state
        # All checks come first: a call that is refused changes nothing.
        target = transition(self.kind, current, attributes)
        self._calls.admit(attributes, before)
        checkMigration(attributes, before)
        if attributes.alternateAddress is not None and self.route == "shared-memory":
            raise InvalidRequest("shared memory has no alternate path")
        if current is _RESET and target is _INIT:
            self._checkQueues()
        if target is _RESET:
            self._reset()
            return
        if target is _ERR:
            self.failed()
            return
        self.attributes = self._changed(attributes, target)  # the host and the route read them
        if target is _RTR and current is _INIT:
            try:
                self._route = self._calls.connect(self)
            except BaseException:
                self.attributes = before
                raise
            self._attach(self._route)
            if self.state is not current:  # it has failed when it was armed
                return
        self.state = target
        if self._route is not None:
            self._route.attributesChanged()
            if attributes.migrationState is MigrationState.MIGRATED:
                self._route.migrate()
        if target is _SQD:
            self._reportDrained()
        elif target is _RTS:
            self._drainReported = False
            if self._held:
                self._release(before)

    def query(self) -> QPAttributes:
        return replace(self.attributes, state=self.state, currentState=self.state)

    def close(self) -> None:
        if self._closed:
            return
        try:
            self._reset()
            self._closed = True  # if that has raised, another call closes the route
        finally:
            self._leaveQueues()
            self._calls.forget(self)

    def _leaveQueues(self) -> None:
        self.sendQueue.leave(self.failed)
        self.receiveQueue.leave(self.failed)
        if self.shared is not None:
            self.shared.leave(self.failed)

    def _changed(self, requested: QPAttributes, target: QPState) -> QPAttributes:
        """Return all attributes after C{modify}."""
        changes = requested.specified()
        changes.update(state=target, currentState=target)
        if requested.alternateAddress is not None:  # replaces all of the previous one
            changes.update(
                alternatePKeyIndex=requested.alternatePKeyIndex, alternateTimeout=requested.alternateTimeout
            )
        if requested.migrationState is MigrationState.MIGRATED:
            del changes["migrationState"]  # set by L{migrationChanged}
        elif target is _RTR and self.kind is QPKind.RC:
            changes["migrationState"] = MigrationState.MIGRATED
        return replace(self.attributes, **changes)

    def _checkQueues(self) -> None:
        self.sendQueue.check()
        self.receiveQueue.check()
        if self.shared is not None:
            self.shared.check()

    def __conform__(self, interface: object) -> object | None:
        """Adapt to an interface that only some routes provide, from RTR on."""
        route = self._route
        if route is not None and interface is IDirectLane and self.shared is None:
            return route.direct
        if interface is IDirectDatagrams and self._datagramRoute() is not None and self.shared is None:
            if self._direct is None:
                ring = self.receiveQueue.ring
                self._direct = DirectDatagrams(self, self.capacity.maxReceive, self._openInbox, ring)
                self._setDatagramRoute()
            return self._direct
        return self if interface is IMulticast and self._datagramRoute() is not None else None

    # IDisarmable

    def disarm(self) -> None:
        if self.attributes.alternateAddress is None:
            return
        self.attributes = replace(
            self.attributes,
            migrationState=MigrationState.MIGRATED,
            alternateAddress=None,
            alternatePKeyIndex=None,
            alternateTimeout=None,
        )
        if self._route is not None:
            self._route.attributesChanged()

    # ITrimmable

    def trim(self) -> None:
        if self.shared is not None:
            return
        first = 0 if self._route is None else int(self._route.trim())  # 1 if the oldest is partly filled
        for request in islice(self.receives, first, None):
            for address, length, lkey in request.segments:
                region = self.keys.lookup(lkey)
                if region is not None and region.domain is self.domain:
                    region.discard(address - region.address, length)

    # IMulticast

    def attachMulticast(self, group: GID) -> None:
        """Also receive the datagrams to an IP group: see L{IMulticast}."""
        route = self._datagramRoute()
        if route is None or not group.isMulticast or group.ip is None:
            raise InvalidRequest(f"{self!r} can't join {group}: it needs an IP group, and at least RTR")
        route.attachMulticast(group.ip)

    def detachMulticast(self, group: GID) -> None:
        """Stop receiving the datagrams to an IP group."""
        route = self._datagramRoute()
        if route is not None and group.ip is not None:
            route.detachMulticast(group.ip)

    def _datagramRoute(self) -> DirectDatagramRoute | None:
        return cast("DirectDatagramRoute | None", self._route) if self.kind is QPKind.UD else None

    def _openInbox(self, direct: DirectDatagrams) -> Sized:
        route = self._datagramRoute()
        assert route is not None, "datagrams without a route"
        route.inbox = direct
        return self.receiveQueue.pollElsewhere(route, self.armRoute)

    def _setDatagramRoute(self) -> None:
        direct = self._direct
        if direct is not None:
            direct.route = self._datagramRoute()

    def _attach(self, route: Route) -> None:
        if route.polled:
            self.sendQueue.attach(route, self.armRoute, self.raised)
            self.receiveQueue.attach(route, self.armRoute, self.raised)
            if self.sendQueue.armed or self.receiveQueue.armed:
                self.armRoute()
        direct = self._direct
        if direct is not None:
            self._setDatagramRoute()
            if direct.isOpen:
                self._openInbox(direct)
        if self.receives:
            route.receivesPosted()

    def _reset(self) -> None:
        """Drop the route and all requests, without completions, and enter RESET."""
        route = self._route
        self.state = _RESET
        self.attributes = _NO_ATTRIBUTES
        try:
            if route is not None:
                route.close()
            self._route = None
        finally:
            if route is not None:
                self.sendQueue.detach(route)
                self.receiveQueue.detach(route)
            if self._direct is not None:
                self._direct.clear()
            if self.shared is None:
                self.receives.clear()
            self._held.clear()
            self.free = self.capacity.maxSend
            self._drainReported = False
            self.sendQueue.purge(self.number)
            self.receiveQueue.purge(self.number)

    def _release(self, before: QPAttributes) -> None:
        """Send requests that were posted in SQD. If they can't be posted, the queue pair stays in SQD."""
        held, self._held = self._held, []
        try:
            if self.kind is QPKind.UD:
                self._postDatagrams(held)
            elif self._route is not None:
                self._route.post(held)
        except BaseException:
            if self.state is _RTS:
                self._held, self.attributes, self.state = held, before, _SQD
            raise

    # Called by the route.

    def routeOpened(self, route: Route) -> None:
        """Replace the route by another one, which it has opened for the first request."""
        before, self._route = self._route, route
        try:
            self._attach(route)
            route.attributesChanged()
        except BaseException:
            self._route = before
            self.sendQueue.detach(route)
            self.receiveQueue.detach(route)
            raise

    def retired(self, count: int) -> None:
        """
        Release that many entries of the send queue. Completions are reported separately, by C{sendCompleted}.
        """
        self.free += count
        if self.state is not _RTS:
            self.free = min(self.free, self.capacity.maxSend)  # a flush may have freed all
            if self.state is _SQD:
                self._reportDrained()

    def failed(self, event: AsyncEventKind | None = None) -> None:
        """Change to ERR: flush sends, then receives (IBA 10.3.1.7). The failed send is already completed."""
        if self.state is _ERR or self.state is _RESET:
            return
        self.state = _ERR
        try:
            if event is not None:
                self._calls.notify(AsyncEvent(event, queuePair=self))
        finally:
            self._flush()

    def _flush(self) -> None:
        """Complete all requests, although the route raises."""
        try:
            left = [] if self._route is None else self._route.flush()
            for identifier, opcode in left:
                self._flushed(identifier, opcode)
        finally:
            held, self._held = self._held, []
            for request in held:
                self._flushed(request.identifier, COMPLETION_OF[request.operation])
            self.free = self.capacity.maxSend
            if self.shared is None:
                self._flushReceives()
            else:
                self._calls.notify(AsyncEvent(AsyncEventKind.QP_LAST_WQE_REACHED, queuePair=self))

    def raised(self) -> None:
        """Log the current exception, and fail this queue pair only."""
        _log.failure(
            "Unexpected error: {queuePair!r} of {device!r} fails", queuePair=self, device=self._calls.device
        )
        try:
            self.failed(AsyncEventKind.QP_FATAL)
        except Exception:
            _log.failure("Unexpected error while {queuePair!r} was failed", queuePair=self)

    def raiseEvent(self, event: AsyncEventKind) -> None:
        """Raise an asynchronous event that does not end the queue pair."""
        self._calls.notify(AsyncEvent(event, queuePair=self))

    def laneOpened(self) -> Sized:
        """Let the lane receive messages itself; return the queued completions, which precede them."""
        assert self._route is not None, "a lane that is not a route"
        return self.receiveQueue.pollElsewhere(self._route, self.armRoute)

    def migrationChanged(self, state: MigrationState) -> None:
        """Record ARMED, or MIGRATED: then the alternate path replaces the path."""
        attributes = self.attributes
        if self.state is _RESET or self.state is _ERR:
            return
        if state is not MigrationState.MIGRATED or attributes.alternateAddress is None:
            self.attributes = replace(attributes, migrationState=state)
            return
        address, pkeyIndex = attributes.alternateAddress, attributes.alternatePKeyIndex
        timeout = attributes.alternateTimeout
        self.attributes = replace(
            attributes,
            migrationState=state,
            address=address,
            port=address.port,
            pkeyIndex=attributes.pkeyIndex if pkeyIndex is None else pkeyIndex,
            timeout=attributes.timeout if timeout is None else timeout,
            alternateAddress=None,
            alternatePKeyIndex=None,
            alternateTimeout=None,
        )
        self.raiseEvent(AsyncEventKind.PATH_MIGRATED)

    # Called by the queues.

    def sharedPosted(self) -> None:
        if self._route is not None and self.state is not _ERR:
            self._route.receivesPosted()

    def armRoute(self) -> None:
        """Arm the route as the completion queues are armed; if that raises, this queue pair fails."""
        if self._route is not None:
            receives = self.receiveQueue.armed
            try:
                self._route.arm(self.sendQueue.armed == 2, receives != 0, receives == 1)
            except Exception:
                self.raised()

    def _datagramCompleted(self, completion: Completion) -> None:
        """Like C{sendCompleted}, but a failed datagram ends sending only, not receiving (IBA 10.3.1.6)."""
        self.sendQueue.push(completion)
        if completion.status and self.state is _RTS:
            self.state = _SQE

    def _flushed(self, identifier: int, opcode: CompletionOpcode) -> None:
        self.sendQueue.push(Completion(identifier, Status.WR_FLUSH_ERR, opcode, self.number))

    def _flushReceives(self) -> None:
        receives = self.receives
        while receives:
            identifier = receives.popleft().identifier
            self.receiveQueue.push(
                Completion(identifier, Status.WR_FLUSH_ERR, CompletionOpcode.RECEIVE, self.number)
            )

    def _reportDrained(self) -> None:
        busy = self.capacity.maxSend - self.free - len(self._held)
        if busy == 0 and not self._drainReported:
            self._drainReported = True
            self._calls.notify(AsyncEvent(AsyncEventKind.SQ_DRAINED, queuePair=self))


def _isAtomic(request: SendRequest) -> bool:
    """Return whether this is a valid atomic, with a segment for the old value."""
    segments = request.segments
    return request.operation in _ATOMICS and len(segments) == 1 and segments[0].length >= _ATOMIC_BYTES


def _malformed(request: SendRequest, maxSegments: int) -> InvalidRequest:
    what = f"request {request.identifier}"
    if request.operation in _ATOMICS and not request.inline:
        return InvalidRequest(f"{what}: {request.operation!r} needs one segment of {_ATOMIC_BYTES} bytes")
    if not request.inline:
        return InvalidRequest(f"{what} has {len(request.segments)} segments, more than {maxSegments}")
    if request.segments:
        return InvalidRequest(f"{what} has both segments and inline data")
    return InvalidRequest(f"{what}: {request.operation!r} takes no inline data")
