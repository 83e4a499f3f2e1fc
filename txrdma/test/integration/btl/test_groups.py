"""
Members of groups in one process, which join over sockets.
"""

from __future__ import annotations

import os
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import CancelledError, Deferred, gatherResults
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.trial.unittest import TestCase

from txrdma import btl
from txrdma.btl.groups.errors import GroupFailed
from txrdma.btl.groups.group import Group
from txrdma.btl.groups.rendezvous import Rendezvous
from txrdma.btl.groups.terms import GroupTerms, makeKeys
from txrdma.error import Refused
from txrdma.kit.proofs import ProvedClientEndpoint

SIZE = 3


class JoinTests(TestCase):
    """Members that join, and members and strangers that cannot."""

    slowBecause = "each member opens a device"

    async def rendezvous(self, size: int = SIZE) -> Rendezvous:
        found = Rendezvous(reactor, size)
        await found.listen()
        self.addCleanup(found.close)
        return found

    def join(self, terms: GroupTerms, timeout: float = 60) -> Deferred[Group]:
        device = f"soft:127.0.5.{terms.rank + 1}"
        return Group.join(reactor, terms, device, timeout=timeout)

    async def test_join(self) -> None:
        """Members join, reduce, and leave."""
        self.assertIs(btl.Group, Group)
        rendezvous = await self.rendezvous()
        groups = await gatherResults([self.join(rendezvous.terms(rank)) for rank in range(SIZE)])
        found = await gatherResults([each.allreduce(bytes([each.rank])) for each in groups])
        self.assertEqual(found, [b"\x03"] * SIZE)
        await gatherResults([each.close() for each in groups])
        self.assertIsNone(rendezvous.failure)

    async def test_wrongRank(self) -> None:
        """A member that claims another rank can join neither the rendezvous nor a member."""
        rendezvous = await self.rendezvous()
        right = rendezvous.terms(1)
        wrong = GroupTerms(2, SIZE, right.host, right.port, right.keys)
        error = await self.assertFailure(self.join(wrong), GroupFailed)
        self.assertRegex(str(error), "rank 2 cannot join the group: .*the keys may differ")
        groups = await gatherResults([self.join(rendezvous.terms(rank)) for rank in range(SIZE)])
        address: Any = groups[0].transport(1).getHost()
        stream = TCP4ClientEndpoint(reactor, address.host, address.port)
        claiming = ProvedClientEndpoint(reactor, stream, 2, 0, right.keys[0])
        await self.assertFailure(claiming.connect(Factory.forProtocol(Protocol)), Refused)
        again = ProvedClientEndpoint(reactor, stream, 1, 0, right.keys[0])
        # The member is refused although its proof is right: it has connected before.
        await self.assertFailure(again.connect(Factory.forProtocol(Protocol)), Refused)
        found = await gatherResults([each.allgather(b"x") for each in groups])
        self.assertEqual(found, [[b"x"] * SIZE] * SIZE)
        await gatherResults([each.close() for each in groups])

    async def test_endsBefore(self) -> None:
        """If a member ends before all have joined, the others fail."""
        rendezvous = await self.rendezvous()
        waiting = [self.join(rendezvous.terms(rank)) for rank in range(2)]
        rendezvous.ended(2, "it was killed")
        for each in waiting:
            error = await self.assertFailure(each, GroupFailed)
            self.assertEqual((str(error), error.rank), ("rank 2 has failed: it was killed", 2))

    async def test_timeout(self) -> None:
        """If a member does not join, the others report how many have."""
        rendezvous = await self.rendezvous()
        error = await self.assertFailure(self.join(rendezvous.terms(0), 0.2), GroupFailed)
        self.assertEqual(str(error), "1 of 3 members have joined in 0.2 seconds")

    async def test_cancel(self) -> None:
        """Joining can be cancelled, which leaves nothing in the reactor."""
        rendezvous = await self.rendezvous()
        joining: Deferred[Any] = self.join(rendezvous.terms(0))
        while not rendezvous._addresses:
            await self.turn()
        joining.cancel()
        await self.assertFailure(joining, CancelledError)

    async def test_noRendezvous(self) -> None:
        """Without a rendezvous nobody can join; if it ends later, the group fails."""
        terms = GroupTerms(0, 2, "127.0.0.1", 1, makeKeys(2)[0])
        error = await self.assertFailure(self.join(terms), GroupFailed)
        self.assertRegex(str(error), "rank 0 cannot join the group: .*refused")
        rendezvous = await self.rendezvous(2)
        groups = await gatherResults([self.join(rendezvous.terms(rank)) for rank in range(2)])
        waiting: Deferred[Any] = groups[0].barrier()
        await rendezvous.close()
        error = await self.assertFailure(waiting, GroupFailed)
        self.assertRegex(str(error), "the connection to the rendezvous was lost")
        await gatherResults([each.close() for each in groups])

    async def test_alone(self) -> None:
        """Without an environment, a group has one member."""
        self.patch(os, "environ", {})
        group = await Group.join(reactor)
        self.assertEqual((group.rank, group.size, await group.allreduce(b"1")), (0, 1, b"1"))
        await group.close()

    async def turn(self) -> None:
        """Wait for one turn of the reactor."""
        done: Deferred[None] = Deferred()
        reactor.callLater(0, done.callback, None)
        await done
