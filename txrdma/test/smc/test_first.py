"""
The first connection of a reactor, on the real one: both ends open their devices for it.
"""

from __future__ import annotations

from txrdma.smc.group.groups import hasLinkGroups
from txrdma.smc.wire.clc import Diagnosis
from txrdma.test.smc.ends import EndsTestCase, reactor

NOT_THERE = r"device=soft\:192.0.2.1"


class FirstConnectionTests(EndsTestCase):
    """The first connection of a reactor."""

    async def test_opensMeanwhile(self) -> None:
        """A server opens its device when it has told an announced client so, and not only for a Proposal."""
        factory, port = await self.serve()
        accepted = factory.next()
        self.assertFalse(hasLinkGroups(reactor))
        client = await self.connect(f"smc:127.0.0.1:{port}:{NOT_THERE}")  # it never proposes
        self.assertEqual(client.smc.fallbackReason, Diagnosis.NOSMCDEV)
        await accepted
        self.assertTrue(hasLinkGroups(reactor))

    async def test_noDevice(self) -> None:
        """A server without its device says so in the answer to the Proposal, as ever."""
        factory, port = await self.serve("smc:127.0.0.1:0:" + NOT_THERE)
        accepted = factory.next()
        client = await self.connect(f"smc:127.0.0.1:{port}")
        self.assertEqual(client.smc.peerDiagnosis, Diagnosis.NOSMCDEV)
        self.assertEqual((await accepted).smc.fallbackReason, Diagnosis.NOSMCDEV)
