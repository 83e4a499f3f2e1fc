"""Common operations of all structures: encoding, text, JSON, copies, errors."""

from __future__ import annotations

import json
import random
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.linkheaders import FlowControl, LinkNextHeader, LRH
from txrdma.iba.path import IBDRPath, IBPath
from txrdma.iba.types import LID
from txrdma.kit.wire import Layout
from txrdma.mad import vendor
from txrdma.mad.core.datagrams import datagramOf
from txrdma.mad.core.frames import frame, Keys
from txrdma.mad.core.transactions import Call
from txrdma.mad.layouts import messages, sa, smp, traps, values
from txrdma.mad.layouts.attributes import attributeOf, ManagementClass, Method, plain, RPCS
from txrdma.mad.layouts.dump import dumped, payloadOf
from txrdma.mad.layouts.messages import MADHeader, MADHeaderDirected, SMPFormat, SMPFormatDirected
from txrdma.mad.layouts.smp import PortInfo
from txrdma.test.support.mad.oracles import placesOf
from txrdma.test.support.mad.structures import attributes, classOf, datagram, structures

_ATTRIBUTES: Final = st.sampled_from(attributes())


def contents(kind: type[Layout]) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=kind.size, max_size=kind.size)


class EveryStructureTests(SynchronousTestCase):
    def test_each(self) -> None:
        for kind in structures():
            for seed in range(3):
                raw = random.Random(f"{kind.__name__} {seed}").randbytes(kind.size)
                read = kind.decode(raw)
                self.assertEqual(read.encode(), raw)
                self.assertEqual(kind.decode(b"before" + raw, 6), read)
                into = bytearray(kind.size + 2)
                read.encodeInto(into, 2)
                self.assertEqual(into, bytes(2) + raw)
                self.assertEqual(json.loads(json.dumps(plain(read))), plain(read))

    @settings(max_examples=100, deadline=None)
    @given(st.data())
    def test_text(self, data: st.DataObject) -> None:
        kind = data.draw(_ATTRIBUTES)
        read = kind.decode(data.draw(contents(kind)))
        shown = [place.name for place, isReserved in placesOf(kind) if not isReserved]
        lines = str(read).splitlines()
        self.assertEqual(len(lines), len(shown))
        self.assertTrue(all(line.isprintable() for line in lines))
        self.assertTrue(repr(read).startswith(f"{kind.__name__}("))

    @settings(max_examples=100, deadline=None)
    @given(st.data())
    def test_dump(self, data: st.DataObject) -> None:
        kind = data.draw(_ATTRIBUTES)
        raw = data.draw(contents(kind))
        whole = datagram(kind, raw)
        known = attributeOf(classOf(kind), kind.attributeID)
        assert known is not None
        found = payloadOf(whole)
        self.assertIs(type(found), known)
        if known is kind:
            self.assertEqual(found, kind.decode(raw))
        self.assertIn(known.__name__, dumped(whole, 1))
        dumped(data.draw(st.binary(max_size=300)), 3)


class JSONTests(SynchronousTestCase):
    def test_texts(self) -> None:
        named = smp.NodeDescription(nodeString="Rack 4 \N{SNOWMAN}".encode().ljust(64, b"\0"))
        self.assertEqual(named.toDict(), {"nodeString": "Rack 4 \N{SNOWMAN}"})
        for raw in (b"\xff" * 64, b"a\0b".ljust(64, b"\0"), b"\x1b[2J".ljust(64, b"\0")):
            strange = smp.NodeDescription(nodeString=raw)
            self.assertEqual(strange.toDict(), {"nodeString": {"hex": raw.hex()}})


class TextTests(SynchronousTestCase):
    def test_fields(self) -> None:
        """Fields are printed with the names that infiniband-diags uses."""
        codes: dict[str, Any] = {"portState": 4, "portPhysicalState": 9}
        speeds = smp.PortInfo(
            linkSpeedActive=4, linkSpeedExtActive=8, linkSpeedExtSupported=9, linkSpeedExtEnabled=30,
            linkSpeedExtActive2=1, linkWidthActive=2,
        )  # fmt: skip
        able = smp.PortInfo(capabilityMask=1 << 1 | 1 << 31, capabilityMask2=1 << 10)
        undefined = smp.PortInfo(linkWidthEnabled=0x22, linkSpeedEnabled=0, vlCap=4, operationalVLs=9)
        corrected = smp.PortInfoExtended(capMask=1, fecModeActive=values.FECMode.RS_FEC)
        for read, name, text in (
            (speeds, "linkSpeedActive", "10.0 Gbps"),
            (speeds, "linkSpeedExtActive", "106.25 Gbps"),
            (speeds, "linkSpeedExtSupported", "14.0625 Gbps or 106.25 Gbps"),
            (speeds, "linkSpeedExtEnabled", "Extended link speeds disabled"),
            (speeds, "linkSpeedExtActive2", "212.5 Gbps"),
            (speeds, "linkSpeedExtSupported2", "No Extended Speed"),
            (speeds, "linkWidthActive", "4X"),
            (smp.ExtendedPortInfo(linkSpeedActive=1), "linkSpeedActive", "FDR10 (0x01)"),
            (smp.ExtendedPortInfo(linkSpeedActive=1), "linkSpeedEnabled", "0x00"),
            (able, "capabilityMask", "0x80000002 (SM, HIERARCHY_INFO)"),
            (able, "capabilityMask2", "0x0400 (LINK_SPEED_NDR)"),
            (smp.PortInfo(**codes), "portState", "ACTIVE (4)"),
            (smp.PortInfo(**codes), "portPhysicalState", "UNKNOWN_0x9 (9)"),
            (undefined, "linkWidthEnabled", "4X or undefined (34)"),
            (undefined, "linkSpeedEnabled", "undefined (0)"),
            (undefined, "vlCap", "VL0-7 (4)"),
            (undefined, "operationalVLs", "9"),
            (corrected, "fecModeActive", "RS_FEC (2)"),
            (corrected, "capMask", "0x00000001 (FEC_MODE)"),
            (vendor.MlxGeneralInfo(fwPSID=b"MT_1234".ljust(16, b"\0")), "fwPSID", "MT_1234"),
        ):
            lines = (line.partition(":") for line in str(read).splitlines())
            self.assertEqual([row[2].lstrip(".") for row in lines if row[0] == name], [text])
        self.assertEqual(smp.PortInfo(**codes).toDict()["portState"], "ACTIVE")


class DumpTests(SynchronousTestCase):
    def test_notice(self) -> None:
        details = traps.LinkDetails(lid=LID(7)).encode()
        reported = dumped(
            datagram(
                messages.Notice, messages.Notice(isGeneric=True, trapNumber=128, details=details).encode()
            )
        )
        self.assertIn("\ntrap LINK_STATE_CHANGE\nLinkDetails.lid 7", reported)
        self.assertIn("\ntrap of a vendor", dumped(datagram(messages.Notice)))

    def test_capabilities(self) -> None:
        info = messages.ClassPortInfo(capabilityMask=0x2601, capabilityMask2=2)
        administration = frame(ManagementClass.SUBN_ADM, Method.GET_RESP, 1, 1, 0, info.encode())
        self.assertIn(
            "ClassPortInfo can: TRAP, UD_MULTICAST, MULTI_PATH, PORT_INFO_CAP_MASK_MATCH, QOS",
            dumped(administration),
        )
        performance = frame(ManagementClass.PERFORMANCE, Method.GET_RESP, 1, 1, 0, info.encode())
        self.assertIn(
            "TRAP, EXTENDED_WIDTH, EXTENDED_WIDTH_NO_IETF, INHIBIT_LIMITED_PKEY", dumped(performance)
        )
        other = frame(ManagementClass.DEV_MGT, Method.GET_RESP, 1, 1, 0, messages.ClassPortInfo().encode())
        self.assertIn("ClassPortInfo can: nothing in particular", dumped(other))

    def test_abort(self) -> None:
        whole = bytearray(datagram(sa.NodeRecord))
        header = messages.RMPPHeader(
            version=1, type=messages.RMPPType.ABORT, active=True, status=messages.RMPPStatus(118)
        )
        whole[24:36] = header.encode()
        self.assertIn(f" ABORT ({messages.RMPPStatus(118).name})", dumped(bytes(whole), 1))


class FormTests(SynchronousTestCase):
    def test_links(self) -> None:
        header = LRH.decode(bytes.fromhex("f012 0007 0048 0003"))
        self.assertEqual((header.virtualLane, header.serviceLevel, header.dlid, header.slid), (15, 1, 7, 3))
        self.assertEqual((header.linkNextHeader, header.packetLength), (LinkNextHeader.BTH, 72))
        credit = FlowControl.decode(bytes.fromhex("0123 1456 0000"))
        self.assertEqual((credit.totalBlocksSent, credit.virtualLane, credit.creditLimit), (0x123, 1, 0x456))


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
