"""Members of groups in one process, which join over sockets."""

from __future__ import annotations

import os
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import CancelledError, Deferred, gatherResults
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import deferLater
from twisted.trial.unittest import SynchronousTestCase, TestCase

from txrdma import btl
from txrdma.btl.groups import sharing
from txrdma.btl.groups._slots import NONCE_BYTES
from txrdma.btl.groups.errors import GroupFailed
from txrdma.btl.groups.group import Group
from txrdma.btl.groups.joining import Joining
from txrdma.btl.groups.rendezvous import Rendezvous
from txrdma.btl.groups.sharing import Offered
from txrdma.btl.groups.terms import GroupTerms, makeKeys
from txrdma.error import Refused
from txrdma.kit.proofs import ProvedClientEndpoint
from txrdma.test.support import slow
from txrdma.unix.mapping import sealedMemory

SIZE = 3


class JoinTests(TestCase):
    """Members that join, and members and strangers that cannot."""

    async def rendezvous(self, size: int = SIZE) -> Rendezvous:
        found = Rendezvous(reactor, size)
        await found.listen()
        self.addCleanup(found.close)
        return found

    def join(self, terms: GroupTerms, timeout: float = 60) -> Deferred[Group]:
        device = f"soft:127.0.5.{terms.rank + 1}"
        return Group.join(reactor, terms, device, timeout=timeout)

    async def test_join(self) -> None:
        self.assertIs(btl.Group, Group)
        rendezvous = await self.rendezvous()
        groups = await gatherResults([self.join(rendezvous.terms(rank)) for rank in range(SIZE)])
        found = await gatherResults([each.allreduce(bytes([each.rank])) for each in groups])
        self.assertEqual(found, [b"\x03"] * SIZE)
        self.assertNotIn(None, [each._memory for each in groups])  # all share memory
        await gatherResults([each.close() for each in groups])
        self.assertIsNone(rendezvous.failure)

    async def test_noMemory(self) -> None:
        """If one member cannot share memory, none does, and operations use messages."""
        rendezvous = await self.rendezvous()
        take = sharing.Offered.take

        def refuse(offered: sharing.Offered, offer: sharing.MemoryOffer) -> None:
            if not refused:
                refused.append(offer)
                offer = offer.replace(nonce=bytes(NONCE_BYTES))
            take(offered, offer)

        refused: list[sharing.MemoryOffer] = []
        self.patch(sharing.Offered, "take", refuse)
        groups = await gatherResults([self.join(rendezvous.terms(rank)) for rank in range(SIZE)])
        found = await gatherResults([each.allreduce(bytes([each.rank])) for each in groups])
        self.assertEqual(found, [b"\x03"] * SIZE)
        self.assertEqual([each._memory for each in groups], [None] * SIZE)
        await gatherResults([each.close() for each in groups])

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
        # The member is refused in spite of a valid proof, because it has connected before.
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

    async def test_cannotJoin(self) -> None:
        """If a member cannot join, the others fail at once, with its reason."""
        rendezvous = await self.rendezvous(2)
        waiting = self.join(rendezvous.terms(0), 5)
        wrong = Group.join(reactor, rendezvous.terms(1), interface="192.0.2.1")  # of no interface
        error = await self.assertFailure(wrong, GroupFailed)
        self.assertRegex(str(error), "rank 1 cannot join the group: .*192.0.2.1")
        other = await self.assertFailure(waiting, GroupFailed)
        self.assertEqual((str(other), other.rank), (f"rank 1 has failed: {error}", 1))

    async def test_givesUp(self) -> None:
        """If a member gives up, because not all have joined in time, the others fail, too."""
        rendezvous = await self.rendezvous()
        waiting = self.join(rendezvous.terms(0), 5)
        while not rendezvous._addresses:
            await deferLater(reactor, 0)
        await self.assertFailure(self.join(rendezvous.terms(1), 0.5), GroupFailed)
        error = await self.assertFailure(waiting, GroupFailed)
        self.assertEqual(
            (str(error), error.rank), ("rank 1 has failed: its attempt to join was cancelled", 1)
        )

    @slow("each member opens a device")
    async def test_stopped(self) -> None:
        """If a member stops after it has connected, the others fail and do not wait."""
        rendezvous = await self.rendezvous(2)
        stopped = Joining(reactor, rendezvous.terms(1), "soft:127.0.5.2", "127.0.0.1")
        waiting = self.join(rendezvous.terms(0), 3)  # on a busy machine the devices take a second
        await stopped.join()
        error = await self.assertFailure(waiting, GroupFailed)
        self.assertEqual(
            str(error), "all members are connected, but one has not completed the join within 3 seconds"
        )
        await stopped.leave()

    async def test_cancel(self) -> None:
        """Joining can be cancelled, which leaves nothing in the reactor."""
        rendezvous = await self.rendezvous()
        joining: Deferred[Any] = self.join(rendezvous.terms(0))
        while not rendezvous._addresses:
            await deferLater(reactor, 0)
        joining.cancel()
        await self.assertFailure(joining, CancelledError)

    async def test_noRendezvous(self) -> None:
        """Without a rendezvous no member can join; if the rendezvous ends later, the group fails."""
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


class OfferTests(SynchronousTestCase):
    """Memory that a member of a group offers."""

    def offered(self) -> Offered:
        found = Offered(SIZE)
        self.addCleanup(found.close)
        return found

    def test_take(self) -> None:
        """Another member maps the same memory, and no further descriptor remains open."""
        maker, taker = self.offered(), self.offered()
        offer = maker.make()
        before = os.listdir("/proc/self/fd")
        taker.take(offer)
        assert maker.mapping is not None
        assert taker.mapping is not None
        maker.mapping[5:8] = b"abc"
        self.assertEqual(taker.mapping[5:8], b"abc")
        taker.mapping.close()
        self.assertEqual(os.listdir("/proc/self/fd"), before)

    def test_strange(self) -> None:
        """Other files, memory of another length or without seals, and missing descriptors are refused."""
        maker = self.offered()
        good = maker.make()
        length = os.fstat(good.descriptor).st_size
        unsealed = os.memfd_create("test", os.MFD_ALLOW_SEALING)
        os.ftruncate(unsealed, length)
        os.pwrite(unsealed, good.nonce, length - len(good.nonce))
        short, _mapping = sealedMemory("test", 4096)
        pipe, other = os.pipe()
        null = os.open("/dev/null", os.O_RDWR)
        for each in (unsealed, short, pipe, other, null):
            self.addCleanup(os.close, each)
        before = sorted(os.listdir("/proc/self/fd"))
        for offer in (
            *(good.replace(descriptor=each) for each in (unsealed, short, pipe, null, 1 << 31)),
            good.replace(nonce=bytes(NONCE_BYTES)),
            good.replace(process=0),
            good.replace(process=(1 << 32) - 1),
        ):
            taker = self.offered()
            taker.take(offer)
            self.assertIsNone(taker.mapping, offer)
        self.assertEqual(sorted(os.listdir("/proc/self/fd")), before)
