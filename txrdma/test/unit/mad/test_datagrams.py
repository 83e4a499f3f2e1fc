"""
Datagrams of calls, which are packed by hand, are those of the declared layouts.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.path import IBDRPath, IBPath
from txrdma.iba.types import LID
from txrdma.mad.core.datagrams import datagramOf
from txrdma.mad.core.frames import Keys
from txrdma.mad.core.transactions import Call
from txrdma.mad.layouts.attributes import ManagementClass, Method, RPCS
from txrdma.mad.layouts.messages import MADHeader, MADHeaderDirected, SMPFormat, SMPFormatDirected
from txrdma.mad.layouts.smp import PortInfo

LIDS = st.integers(0, 0xFFFF).map(LID)
LONGS = st.integers(0, (1 << 64) - 1)
NUMBERS = st.integers(0, (1 << 32) - 1)
CONTENTS = st.one_of(st.just(b""), st.binary(min_size=64, max_size=64))


def asked(name: str, content: bytes = b"", modifier: int = 0, mkey: int = 0) -> Call:
    return Call(RPCS[name], PortInfo, content, modifier, Keys(mkey=mkey), 0)


class SubnetManagementTests(SynchronousTestCase):
    @given(st.lists(st.integers(0, 255), max_size=63), LIDS, LIDS, LONGS, NUMBERS, LONGS, CONTENTS)
    def test_directed(
        self, hops: list[int], slid: LID, dlid: LID, identifier: int, modifier: int, mkey: int, content: bytes
    ) -> None:
        path = IBDRPath(drPath=tuple(hops), drSLID=slid, drDLID=dlid)
        made = datagramOf(asked("SubnSet", content, modifier, mkey), path, identifier)
        header = MADHeaderDirected(
            baseVersion=1,
            managementClass=ManagementClass.SUBN_DIRECTED,
            classVersion=1,
            method=Method.SET,
            hopCount=len(hops),
            transactionID=identifier,
            attributeID=PortInfo.attributeID,
            attributeModifier=modifier,
        )
        declared = SMPFormatDirected(
            header=header,
            mkey=mkey,
            drSLID=slid,
            drDLID=dlid,
            payload=content.ljust(64, b"\0"),
            initialPath=(b"\0" + bytes(hops)).ljust(64, b"\0"),
        )
        self.assertEqual(made, declared.encode())

    @given(LONGS, NUMBERS, LONGS, CONTENTS)
    def test_byLID(self, identifier: int, modifier: int, mkey: int, content: bytes) -> None:
        made = datagramOf(asked("SubnGet", content, modifier, mkey), IBPath(dlid=LID(7)), identifier)
        header = MADHeader(
            baseVersion=1,
            managementClass=ManagementClass.SUBN_LID,
            classVersion=1,
            method=Method.GET,
            transactionID=identifier,
            attributeID=PortInfo.attributeID,
            attributeModifier=modifier,
        )
        self.assertEqual(made, SMPFormat(header=header, mkey=mkey, payload=content.ljust(64, b"\0")).encode())
