"""
Datagrams of calls on directed routes, of which the common part is kept.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.path import IBDRPath
from txrdma.mad.core.asked import Asked
from txrdma.mad.core.datagrams import Datagrams
from txrdma.mad.core.frames import Keys, managementPacket, NO_KEYS
from txrdma.mad.layouts.attributes import Method, RPCS
from txrdma.mad.layouts.smp import NodeInfo, PortInfo


def asked(kind: type[NodeInfo | PortInfo], modifier: int, keys: Keys = NO_KEYS) -> Asked:
    """A call without content."""
    return Asked(RPCS["SubnGet"], kind, b"", modifier, keys, 0)


class KeptTests(SynchronousTestCase):
    """Many routes, some of them used again."""

    def setUp(self) -> None:
        self.made = Datagrams()

    def check(self, call: Asked, path: IBDRPath, identifier: int) -> None:
        head = Method.GET, identifier, call.kind.attributeID, call.modifier
        whole = managementPacket(*head, b"", path, call.keys.mkey)
        self.assertEqual(self.made.datagram(call, path, identifier), whole)
        self.assertEqual(len(whole), 256)

    def test_inTurns(self) -> None:
        """Routes that are asked in turns have datagrams of their own, each time."""
        routes = [IBDRPath(drPath=(1, port)) for port in range(1, 200)]
        for turn in range(3):
            for number, path in enumerate(routes):
                self.check(asked(PortInfo, number), path, turn << 32 | number)

    def test_forgotten(self) -> None:
        """Paths that nobody keeps are not taken for one another, however many there are."""
        for number in range(5000):
            self.check(asked(NodeInfo, 0), IBDRPath(drPath=(1, number & 0x7F, number >> 7)), number)

    def test_keys(self) -> None:
        """A route that is asked with another M_Key has that one."""
        path = IBDRPath(drPath=(1, 2))
        for mkey in (0, 5, 5, 0, 7):
            self.check(asked(NodeInfo, 0, Keys(mkey=mkey)), path, 1)

    def test_few(self) -> None:
        """What is kept is bounded."""
        for number in range(5000):
            self.made.datagram(asked(NodeInfo, 0), IBDRPath(drPath=(number & 0x7F,)), 1)
        self.assertLessEqual(len(self.made._tails), 1024)
