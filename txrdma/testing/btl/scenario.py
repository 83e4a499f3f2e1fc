"""
Simulations of the byte transfer layer according to plans, with checks of its promises.

Every message is delivered exactly once, or its failure is reported to its sender. A message reported as
completed has arrived byte for byte, and in order where that was requested. Puts change nothing but their
destination. At the end no module has state of a peer left.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random

from txrdma.btl.core.assembly import Budget
from txrdma.btl.core.events import (
    Event,
    MessageReceived,
    PeerClosed,
    PeerFailed,
    ProbeReceived,
    SendCompleted,
    SendFailed,
)
from txrdma.btl.core.module import Module
from txrdma.btl.core.peer import Peer, PEER_CLOSED
from txrdma.btl.wire import PUT_LENGTH
from txrdma.error import InvalidRequest
from txrdma.testing.btl.plans import BurstPlan, FOREVER, ModulesPlan, OrderPlan, ReceiveBufferPlan
from txrdma.testing.btl.world import BadNetwork, ModuleHost, World
from txrdma.testing.outcome import check, Outcome

GIVE_UP = 20.0
"""Seconds after which modules of a simulation consider a silent peer lost."""

_COUNTERS = (
    *("num_pack_sends", "num_rdma_sends", "num_rdma_misses", "num_resends", "num_timeout_retrans"),
    *("num_fast_retrans", "num_spurious_resends", "num_dup_recvs", "num_refused_sends"),
)
_LIMIT = 4800.0  # with a loss of 30 % and a round trip of 40 ms, some 45 segments of 36 bytes a second
_CREDITS = (63, 127)
_MEMORY = 40_000


class Order:
    """
    A message or a put that a program wants to send.

    @ivar outcome: result reported to its sender; C{deliveries}: number of its deliveries to the receiver.
    @ivar isStale: whether it is a put that must be refused.
    @ivar isInOrder: whether it must be delivered after messages sent before; C{given}: its position.
    @ivar mayWait: whether its receiver queues it until everything sent before has arrived, even if urgent.
    """

    def __init__(self, number: int, sender: int, receiver: int, data: bytes) -> None:
        self.number, self.sender, self.receiver, self.data = number, sender, receiver, data
        self.isPut = self.isStale = self.isUrgent = self.isInOrder = self.mayWait = self.wasGiven = False
        self.given = 0
        self.outcome: str | None = None
        self.deliveries = 0
        self.target = (0, 0)  # region and offset

    def __repr__(self) -> str:
        what = "stale put" if self.isStale else "put" if self.isPut else "message"
        return f"{what} {self.number} of {len(self.data)} bytes from {self.sender} to {self.receiver}"


class Scenario:
    """A simulation of hosts that send to each other over a bad network, according to its plan."""

    def __init__(self, plan: ModulesPlan) -> None:
        self.plan = plan
        partitions = [(each.begin, each.end, each.one, each.other) for each in plan.partitions]
        self.network = BadNetwork(
            plan.loss, plan.duplication, plan.forgery, plan.delays, plan.jitter, partitions
        )
        self.world = World(Random(f"network {plan.seed}"), self.network)
        self.orders: list[Order] = []
        self.counts: Counter[str] = Counter()
        self.counters: Counter[str] = Counter()
        self.peers: dict[tuple[int, int], Peer] = {}
        self.regions: dict[int, tuple[int, bytearray]] = {}
        self.ended: dict[tuple[int, int], str] = {}
        self.latest: dict[tuple[int, int], int] = {}
        self._given = 0
        self.isFatal = any(each.end == FOREVER for each in plan.partitions)
        self._hosts()
        self._trouble()
        self._wishes()
        self._unsettled = self.orders.copy()

    def _hosts(self) -> None:
        for number, plan in enumerate(self.plan.modules):
            budget = Budget(plan.budget, 1 << 20)
            module = Module(self.plan.mtu, _CREDITS, budget, GIVE_UP, plan.keepAlive)
            host = ModuleHost(self.world, module, partial(self._received, number))
            memory = bytearray(_MEMORY)
            self.regions[number] = (module.regions.register(memoryview(memory)), memory)
            for other in self.world.hosts[:-1]:
                peers = host.meet(other)
                self.peers[number, other.number], self.peers[other.number, number] = peers
        for landing in self.plan.landings:
            self._share(landing)

    def _share(self, plan: ReceiveBufferPlan) -> None:
        """Let a host write into another one's receive buffer from the planned time on; writes may fail."""
        host = self.world.hosts[plan.sender]
        peer, back = self.peers[plan.sender, plan.receiver], self.peers[plan.receiver, plan.sender]
        noise = Random(f"landing {self.plan.seed} {plan.sender} {plan.receiver}")
        delay = noise.choice((None, 0.0, 0.001, 0.1))

        def isOutOfReach() -> bool:
            return self.world.now >= plan.end or noise.random() < plan.misses

        self.world.call(plan.begin, lambda: host.share(peer, back, plan.size, isOutOfReach, delay))

    def _trouble(self) -> None:
        hosts, plan = self.world.hosts, self.plan
        if plan.death is not None:
            self.world.call(plan.death.at, partial(self._die, hosts[plan.death.host]))
        if plan.pause is not None:
            self.world.call(plan.pause.at, partial(self._beBusy, hosts[plan.pause.host], plan.pause.seconds))
        if plan.liar is not None:
            self._lie(plan.liar)

    def _die(self, host: ModuleHost) -> None:
        host.isDead = self.isFatal = True
        self.counts["deaths"] += 1

    def _beBusy(self, host: ModuleHost, seconds: float) -> None:
        host.busyUntil = self.world.now + seconds

    def _lie(self, liar: int) -> None:
        """Let one host alter its packets, except for the name that identifies their sender."""
        random = Random(f"lies {self.plan.seed}")

        def altered(number: int, packet: bytes) -> bytes:
            if number != liar or random.random() > 0.2:
                return packet
            lie = bytearray(packet)
            for _each in range(random.choice((1, 1, 4))):
                at = random.randrange(len(lie))
                if not 4 <= at < 12:
                    flipped = lie[at] ^ 1 << random.randrange(8)
                    lie[at] = random.choice((0, 0xFF, flipped, random.randrange(256)))
            return bytes(lie)

        self.world.alter = altered

    def _wishes(self) -> None:
        used = [0] * len(self.world.hosts)
        for plan in self.plan.bursts:
            burst = [self._order(plan, each, used) for each in plan.orders]
            self.world.call(plan.at, partial(self._give, burst))

    def _order(self, burst: BurstPlan, plan: OrderPlan, used: list[int]) -> Order:
        number, size, receiver = len(self.orders), plan.size, burst.receiver
        data = Random(f"order {self.plan.seed} {number}").randbytes(size - 4)
        order = Order(number, burst.sender, receiver, number.to_bytes(4, "big") + data)
        self.orders.append(order)
        order.isUrgent = plan.isUrgent
        if plan.mayWait:
            order.mayWait = True
            order.isInOrder = not order.isUrgent
            self.peers[receiver, burst.sender].order.tags.add(number)
        if plan.isPut:
            order.isPut = True
            region, offset = self.regions[receiver][0], used[receiver]
            order.isStale = plan.isStale or offset + size > _MEMORY
            if order.isStale:
                fits = size + PUT_LENGTH <= self.plan.mtu  # otherwise a part could be written
                beyond = _MEMORY + 1 - (size if fits else 0)
                order.target = ((region, beyond), (region + 7, 0), (region, 1 << 63))[plan.fault]
            else:
                used[receiver] += size
                order.target = (region, offset)
        return order

    def _give(self, burst: list[Order]) -> None:
        """Send these messages from their host in one iteration."""
        host = self.world.hosts[burst[0].sender]
        if not host.isDead:
            for order in burst:
                self._send(host, order)
            host.turn()

    def _send(self, host: ModuleHost, order: Order) -> None:
        peer = self.peers[order.sender, order.receiver]
        try:
            if order.isPut:
                host.module.put(peer, *order.target, order.data, order)
            else:
                host.send(peer, order.number, order.data, order, order.isUrgent)
        except InvalidRequest:
            # A lying host may announce its end, which is reported after its last acknowledgements.
            hasEnded = (order.sender, order.receiver) in self.ended or peer.state == PEER_CLOSED
            check(hasEnded, f"{order} cannot be sent, although its peer is connected")
            return
        order.wasGiven = True
        self._given += 1
        order.given = self._given

    def _received(self, number: int, event: Event) -> None:
        other = event.peer.context
        assert isinstance(other, ModuleHost)
        if isinstance(event, MessageReceived):
            self._delivered(number, other.number, event.tag, bytes(event.data))
        elif isinstance(event, (SendCompleted, SendFailed)):
            order = event.context
            assert isinstance(order, Order)
            check(order.outcome is None, f"{order} has two outcomes")
            order.outcome = "completed" if isinstance(event, SendCompleted) else event.reason
        elif isinstance(event, ProbeReceived):
            check(other.number == self.plan.liar, f"{other.number} has sent a probe")  # an altered packet
        else:
            assert isinstance(event, (PeerClosed, PeerFailed))
            check((number, other.number) not in self.ended, f"{number} has lost {other.number} twice")
            self.ended[number, other.number] = event.reason if isinstance(event, PeerFailed) else "closed"

    def _delivered(self, receiver: int, sender: int, tag: int, data: bytes) -> None:
        if sender == self.plan.liar:
            return
        order = self.orders[tag]
        check(
            (order.sender, order.receiver) == (sender, receiver) and not order.isPut,
            f"{order} was delivered to {receiver} from {sender}",
        )
        hasGivenBack = receiver == self.plan.liar and self.peers[sender, receiver].receiveBuffer is not None
        isSame = order.data == data or hasGivenBack  # a false acknowledgement releases the memory
        check(isSame, f"{order} was changed")
        if order.isInOrder:
            latest = self.latest.get((sender, receiver), 0)
            check(order.given > latest, f"{order} is overtaken by others that are in order")
            self.latest[sender, receiver] = order.given
        order.deliveries += 1

    def play(self) -> Outcome:
        """
        Run the simulation to its end, and check the promises.

        @raise Violation: a promise was violated.
        """
        self.world.run(_LIMIT / 2, self._isEndReported)
        self.world.run(self.world.now + 1.0)
        self.world.run(_LIMIT / 2, self._isDelivered)
        check(
            self._isEndReported(), f"not reported: {[each for each in self.orders if self._isOpen(each)][:3]}"
        )
        self._close()
        self._judge()
        self.counts.update({name.removeprefix("num_"): self.counters[name] for name in _COUNTERS})
        return Outcome(self.counts, self.counters)

    def _isOpen(self, order: Order) -> bool:
        if self.world.hosts[order.sender].isDead or self.plan.liar in (order.sender, order.receiver):
            return False
        if not order.wasGiven:
            return (order.sender, order.receiver) not in self.ended
        return order.outcome is None

    def _isEndReported(self) -> bool:
        while self._unsettled and not self._isOpen(self._unsettled[-1]):  # settled orders remain settled
            self._unsettled.pop()
        return not self._unsettled

    def _isDelivered(self) -> bool:
        """Return whether no received message waits for the retransmission of an earlier segment."""
        isOver = self.isFatal or self.plan.liar is not None
        return isOver or not any(each.order.waiting for each in self.peers.values())

    def _close(self) -> None:
        """Close all peers, from both ends or from one, and check that no module has peers left."""
        fromBoth = self.isFatal or self.plan.liar is not None
        noise = Random(f"closing {self.plan.seed}")
        for (number, other), peer in self.peers.items():
            host = self.world.hosts[number]
            if not host.isDead and (fromBoth or number < other or noise.random() < 0.5):
                host.module.close(peer)
                host.turn()
        if self.plan.liar is not None:
            self.world.run(self.world.now + 30.0)
            return
        alive = [host for host in self.world.hosts if not host.isDead]
        isOver = self.world.run(self.world.now + _LIMIT, lambda: not any(each.module.peers for each in alive))
        check(isOver, "peers do not end")

    def _judge(self) -> None:
        for order in self.orders:
            if self.plan.liar not in (order.sender, order.receiver):
                self._judgeOrder(order)
        for host in self.world.hosts:
            self.counters.update(host.module.counters.named())
            if self.plan.liar is None and not host.isDead:
                module = host.module
                check(module._budget.used == 0, "bytes of incomplete messages are not released")
                check(
                    not (module._owed.peers or module._ready or module._losing),
                    "a module still has peers",
                )
                check(tuple(module.credits) == _CREDITS, f"credits are lost: {module.credits}")
        self.counts.update(packets=self.world.packets, dropped=self.world.dropped)
        if not self.isFatal and self.plan.liar is None:
            lost = [reason for reason in self.ended.values() if reason != "closed"]
            check(not lost, f"peers are lost without a reason: {lost}")

    def _judgeOrder(self, order: Order) -> None:
        hasCompleted = order.outcome == "completed"
        check(order.deliveries <= 1, f"{order} is delivered {order.deliveries} times")
        isLostWithin = order.mayWait and self.isFatal
        if hasCompleted and not order.isPut and not isLostWithin:
            check(order.deliveries == 1, f"{order} has completed, but was not delivered")
        if order.isStale:
            check(not hasCompleted, f"{order} has completed")
        elif order.isPut and hasCompleted and self.plan.liar is None:
            memory, offset = self.regions[order.receiver][1], order.target[1]
            check(memory[offset : offset + len(order.data)] == order.data, f"{order} has written other bytes")
        elif not self.isFatal and order.wasGiven:
            check(hasCompleted, f"{order} has failed: {order.outcome}")
        if order.outcome is not None:
            self.counts["completed" if hasCompleted else "failed"] += 1


def playModules(plan: ModulesPlan) -> Outcome:
    """
    Run the simulation of a plan.

    @raise Violation: a promise was violated.
    """
    return Scenario(plan).play()
