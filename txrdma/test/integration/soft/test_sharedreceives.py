"""
Shared receive queues of the software device, and their queue pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from txrdma.iba.verbs import (
    AsyncEventKind,
    Operation,
    QPAttributes,
    QPKind,
    QPState,
    ReceiveRequest,
    SendRequest,
    Status,
)
from txrdma.test.support.soft.neighbours import RealCase
from txrdma.testing.verbs.ends import End, QKEY


class RoutesTests(RealCase):
    """One queue with queue pairs of every kind, over real sockets and shared memory."""

    def until(self, condition: Callable[[], bool], *ends: End) -> None:
        """Run the reactor until a condition holds, and poll the ends meanwhile."""

        def isSo() -> bool:
            for end in ends:
                end.poll()
            return condition()

        self.runUntil(isSo)

    def test_messagesOfAllRoutesTakeReceivesOfOneQueue(self) -> None:
        here, near, far = self.open("auto"), self.open("auto"), self.open("rocev2")
        hub = End(here)
        shared = hub.domain.createSharedReceiveQueue(64, 1)
        pairs = []
        for device in (near, far):
            one, other = End(device), End(here, shared=shared, beside=hub)
            for end in (one, other):
                end.toInit()
            one.toRTR(other)
            other.toRTR(one)
            for end in (one, other):
                end.toRTS()
            pairs.append((one, other))
        self.assertEqual([other.queuePair.route for _one, other in pairs], ["shared-memory", "rocev2"])
        sender, taker = End(far, QPKind.UD), End(here, QPKind.UD, shared=shared, beside=hub)
        for end in (sender, taker):
            end.toInit()
            end.toRTR(hub)
            end.toRTS()
        handle = sender.domain.createAddressHandle(sender.destinationOf(taker))
        shared.arm(30)
        shared.postReceive([ReceiveRequest(index, [hub.segment(index * 128, 128)]) for index in range(40)])
        ends = [hub, sender, taker, *(end for pair in pairs for end in pair)]
        takers = [*(other for _one, other in pairs), taker]

        def everybodyHas(takers: list[End], count: int) -> bool:
            return all(len(end.received) == count for end in takers)

        for turn in range(4):
            for which, (one, _other) in enumerate(pairs):
                one.send(inline=[b"%d of turn %d" % (which, turn)])
            sender.queuePair.postSend(
                [
                    SendRequest(
                        1,
                        Operation.SEND,
                        inline=[b"2 of turn %d" % turn],
                        address=handle,
                        remoteQPN=taker.queuePair.number,
                        remoteQKey=QKEY,
                    )
                ]
            )
            self.until(partial(everybodyHas, takers, turn + 1), *ends)
        found = []
        for which, end in enumerate(takers):
            for turn, completion in enumerate(end.received):
                self.assertEqual(completion.status, Status.SUCCESS)
                self.assertEqual(completion.qpn, end.queuePair.number)
                start = completion.identifier * 128 + (40 if end is taker else 0)
                self.assertEqual(bytes(hub.memory.view[start : start + 11]), b"%d of turn %d" % (which, turn))
                found.append(completion.identifier)
        self.assertEqual(sorted(found), list(range(12)))
        self.until(lambda: any(e.kind is AsyncEventKind.SRQ_LIMIT_REACHED for e in hub.events), *ends)
        pairs[0][1].queuePair.modify(QPAttributes(state=QPState.ERR))
        self.until(lambda: any(e.kind is AsyncEventKind.QP_LAST_WQE_REACHED for e in hub.events), *ends)
        pairs[1][0].send(inline=[b"1 of turn 4"])
        self.until(lambda: len(pairs[1][1].received) == 5, *ends)
        self.assertEqual(pairs[1][1].received[-1].identifier, 12)
        self.assertEqual(len(pairs[0][1].received), 4)
        for end in reversed(ends):
            end.close()
