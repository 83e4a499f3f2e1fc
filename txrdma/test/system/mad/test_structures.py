"""
Every structure has the layout of other programs: libibmad, tshark, python-rdma, and published definitions.

Structures that none of them has are listed with the reason; the tests fail for any other structure without a
reference.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import re
from collections.abc import Iterator
from typing import Any, Final

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.iba.types import GID, LID
from txrdma.iba.verbs import NodeType, PhysicalState, PortState
from txrdma.mad.layouts import messages, pma, smp, traps
from txrdma.mad.layouts.attributes import Attribute, ManagementClass
from txrdma.mad.layouts.values import DownDefault, PathMTU, PortCapability, PortCapability2
from txrdma.test.support.mad.oracles import libibmad
from txrdma.test.support.mad.pythonrdma import STRUCTURES
from txrdma.test.support.mad.structures import (
    alike,
    ERRORS,
    LEFT_OUT,
    LIBIBMAD,
    misnamed,
    missing,
    structures,
    unknownPeers,
    UNSEEN,
    witnesses,
)

_SYNONYMS: Final = frozenset(
    {
        "CongMgtFormat.payload is mgt_data",
        "IOControllerProfile.controllerServicesMask is svc_cap_mask",
        "MultiPathRecord.serviceIDLower is service_id_56lsb",
        "MultiPathRecord.serviceIDUpper is service_id_8msb",
        "SIDRREQ.pkey is PARTITION_KEY",
        "ServiceRecord.data8 is service_data8",
    }
)
"""Fields whose names in other programs share no word with txrdma's."""


class NoticeTests(SynchronousTestCase):
    def test_otherClasses(self) -> None:
        notice = messages.ReportedNotice(isGeneric=True, trapNumber=259)
        self.assertIsInstance(traps.detailsOf(notice), traps.SwitchPKeyDetails)
        self.assertIsInstance(traps.detailsOf(notice, ManagementClass.BM), traps.BadBKeyDetails)
        self.assertIsNone(traps.detailsOf(notice, ManagementClass.CONG_MGT))
        congested = messages.ReportedNotice(isGeneric=True, trapNumber=0)
        self.assertIsInstance(traps.detailsOf(congested, ManagementClass.CONG_MGT), traps.BadCCKeyDetails)
        self.assertIsNone(traps.detailsOf(congested))

    def test_describe(self) -> None:
        details = traps.LinkDetails(lid=LID(7)).encode()
        notice = messages.Notice(isGeneric=True, trapNumber=128, details=details)
        reported = traps.describe(notice)
        self.assertEqual((reported["trap"], reported["details"]), ("LINK_STATE_CHANGE", {"lid": 7}))
        strange = traps.describe(messages.Notice(trapNumber=128))
        self.assertEqual((strange["trap"], strange["details"]), (None, bytes(54).hex()))
        json.dumps([reported, strange])

    def test_issuer(self) -> None:
        gid = GID.fromString("fe80::2")
        report = messages.ReportedNotice(isGeneric=True, trapNumber=64, issuerGID=gid)
        self.assertEqual(report.encode()[:64], messages.Notice(isGeneric=True, trapNumber=64).encode())
        self.assertEqual(report.encode()[64:], gid.raw)
        self.assertEqual(str(traps.describe(report)["issuerGID"]), "fe80::2")

    def test_changes(self) -> None:
        raw = bytes((0, 0, 0, 7, 0, 1)) + (1 << 14).to_bytes(4, "big") + bytes((0, 0x2A, 4, 0)) + bytes(40)
        reported = traps.LocalChangeDetails.decode(raw)
        self.assertEqual(
            (reported.lid, reported.otherLocalChanges, reported.capabilityMask), (7, True, 1 << 14)
        )
        self.assertEqual(
            (reported.capabilityMask2Change, reported.hierarchyInfoChange, reported.smPriorityChange),
            (True, False, True),
        )
        self.assertEqual(
            (
                reported.linkSpeedEnabledChange,
                reported.linkWidthEnabledChange,
                reported.nodeDescriptionChange,
            ),
            (False, True, False),
        )
        self.assertEqual(reported.capabilityMask2, 0x400)


class PlaceTests(SynchronousTestCase):
    slowBecause = "the first of these tests has tshark decode every structure"

    def test_everyField(self) -> None:
        lost = missing(structures(), witnesses(), UNSEEN)
        self.assertEqual(lost, [], "\n".join(lost))

    def test_everyWitness(self) -> None:
        strange = unknownPeers(witnesses(), ERRORS)
        self.assertEqual(strange, [], "\n".join(strange))

    def test_everyFieldOfLibibmad(self) -> None:
        actual = {number for _, ranges in LIBIBMAD.values() for numbers in ranges for number in numbers}
        left = {number: place for number, place in libibmad().items() if number not in actual}
        self.assertEqual(left.keys(), LEFT_OUT.keys(), left)

    def test_names(self) -> None:
        left = sorted(misnamed(structures(), witnesses()) - _SYNONYMS)
        self.assertEqual(left, [], "\n".join(left))

    def test_lists(self) -> None:
        names = {kind.__name__ for kind in structures()}
        self.assertEqual(set(UNSEEN) - names, set())
        self.assertEqual({name for name, _ in ERRORS} - names, set())
        self.assertEqual({name for _, name in STRUCTURES.items()} - names, set())
        needed = {line.partition(".")[0] for line in missing(structures(), witnesses(), {})}
        empty = {kind.__name__ for kind in structures() if not kind.fields}
        alone = {"CMPath"}  # part of a REQ, which has references
        self.assertEqual(set(UNSEEN) - needed - empty - alone, set())
        self.assertEqual(_SYNONYMS - misnamed(structures(), witnesses()), frozenset())


_ROW: Final = re.compile(r"^(\w+):\.+(.*)$", re.MULTILINE)


def theirText(kind: str, raw: bytes) -> str:
    """
    Return the text that libibmad prints for a structure.

    @raise SkipTest: libibmad is not installed.
    """
    name = ctypes.util.find_library("ibmad")
    if name is None:
        raise SkipTest("libibmad is not installed: it comes with infiniband-diags")
    output = ctypes.create_string_buffer(1 << 16)
    content = ctypes.create_string_buffer(raw.ljust(512, b"\0"))
    print_ = getattr(ctypes.CDLL(name), f"mad_dump_{kind}")
    print_.restype = None
    print_(output, len(output), content, len(raw))
    return output.value.decode()


def rows(text: str) -> list[tuple[str, str]]:
    return _ROW.findall(text)


def plainly(text: str) -> object:
    output = re.sub(r"\s*\(.*\)$", "", text).lower()
    if "undefined" in output or "undefined" in text:
        return "undefined"
    if output == "no extended speed":
        return 0
    if " or " in output:
        return frozenset(output.split(" or "))
    output = output.replace("_", "").replace(" ", "").removeprefix("mtu")
    try:
        return int(output, 0)
    except ValueError:
        return output


def valueIn(text: str, name: str) -> str:
    found = dict(rows(text))
    return found[name] if name in found else next(v for n, v in rows(text) if alike(name, n))


def codes() -> Iterator[tuple[str, str, list[int]]]:
    yield "portState", "LinkState", [int(code) for code in PortState if 1 <= code <= 4]
    yield "portPhysicalState", "PhysLinkState", [int(code) for code in PhysicalState if 1 <= code <= 7]
    yield "linkDownDefaultState", "LinkDownDefState", [int(code) for code in DownDefault if code]
    for actual, reference in (("neighborMTU", "NeighborMTU"), ("mtuCap", "MtuCap")):
        yield actual, reference, [int(code) for code in PathMTU if code]
    for actual, reference in (("vlCap", "VLCap"), ("operationalVLs", "OperVLs")):
        yield actual, reference, [1, 2, 3, 4, 5]
    yield "linkWidthActive", "LinkWidthActive", [1, 2, 4, 8, 16]
    for actual, reference in (
        ("linkWidthEnabled", "LinkWidthEnabled"),
        ("linkWidthSupported", "LinkWidthSupported"),
    ):
        yield actual, reference, [1, 2, 3, 11, 18, 31, 32, 35]
    yield "linkSpeedActive", "LinkSpeedActive", [1, 2, 4]
    for actual, reference in (
        ("linkSpeedEnabled", "LinkSpeedEnabled"),
        ("linkSpeedSupported", "LinkSpeedSupported"),
    ):
        yield actual, reference, [1, 3, 5, 7]
    yield "linkSpeedExtActive", "LinkSpeedExtActive", [0, 1, 2, 4, 8]
    yield "linkSpeedExtSupported", "LinkSpeedExtSupported", [0, 1, 3, 7, 15]
    yield "linkSpeedExtEnabled", "LinkSpeedExtEnabled", [0, 1, 3, 15, 30]


class TextTests(SynchronousTestCase):
    def same(self, actual: Attribute, name: str, reference: str, other: str) -> None:
        one, two = plainly(valueIn(str(actual), name)), plainly(valueIn(reference, other))
        if (one, two) not in _CODES:
            self.assertEqual(one, two, name)

    def test_codes(self) -> None:
        for name, reference, numbers in codes():
            for number in numbers:
                values: dict[str, Any] = {"linkWidthActive": 1, name: number}
                info = smp.PortInfo(**values)
                self.same(info, name, theirText("portinfo", info.encode()), reference)

    def test_nodes(self) -> None:
        for kind in (NodeType.CHANNEL_ADAPTER, NodeType.SWITCH, NodeType.ROUTER):
            info = smp.NodeInfo(nodeType=kind)
            self.same(info, "nodeType", theirText("nodeinfo", info.encode()), "NodeType")

    def test_capabilities(self) -> None:
        for field, names in (("capabilityMask", PortCapability), ("capabilityMask2", PortCapability2)):
            for flag in names:
                values: dict[str, Any] = {"linkWidthActive": 1, field: int(flag)}
                info = smp.PortInfo(**values)
                reference = re.findall(
                    r"^\s+Is(\w+?)(?:[sS]upported)?$", theirText("portinfo", info.encode()), re.M
                )
                assert flag.name is not None
                self.assertEqual(len(reference), 1, flag.name)
                one, other = flag.name.lower().replace("_", ""), reference[0].lower()
                self.assertTrue(one in other or other in one or (one, other) in _CAPABILITIES, (one, other))

    def test_numbers(self) -> None:
        for kind, name in (
            (smp.NodeInfo, "nodeinfo"),
            (smp.SwitchInfo, "switchinfo"),
            (smp.ExtendedPortInfo, "mlnx_ext_port_info"),
            (pma.PortCounters, "perfcounters"),
            (pma.PortXmitDiscardDetails, "perfcounters_xmt_disc"),
            (pma.PortRcvErrorDetails, "perfcounters_rcv_err"),
            (messages.ClassPortInfo, "classportinfo"),
        ):
            raw = bytes((7 * number + 3) & 255 for number in range(kind.size))
            if kind is smp.NodeInfo:
                raw = raw[:2] + b"\2" + raw[3:]
            reported = kind.decode(raw)
            reference, actual = rows(theirText(name, raw)), rows(str(reported))
            seen = 0
            for (mine, _), (other, text) in zip(actual, reference, strict=True):
                self.assertTrue(alike(mine, other) or _TEXT_SYNONYMS.get(other) == mine, (mine, other))
                if (kind.__name__, other) in _WRONG:
                    continue
                value: Any = getattr(reported, mine)
                number = value if isinstance(value, int) else int.from_bytes(value.raw, "big")
                output = re.sub(r"\s*\(.*\)$", "", text)
                if output.startswith("0x") or output.isdigit():
                    self.assertEqual(int(output, 0), number, (kind.__name__, mine, other))
                    seen += 1
                elif re.fullmatch(r"[0-9a-f]{32}", output):
                    self.assertEqual(int(output, 16), number, (kind.__name__, mine, other))
                    seen += 1
            self.assertGreaterEqual(seen, len(reference) - 4, name)


_CAPABILITIES: Final = {
    ("vendormads", "vendorspecificmadstable"),
    ("multicastpkeytrapsuppression", "mcastpkeytrapsuppression"),
    ("communicationmanagement", "communicatonmanagement"),
    ("snmptunnelling", "snmptunneling"),
    ("clientreregistration", "clientregistration"),
    ("mkeyprotectbitsextended", "mkeyprotectbitsext"),
}
"""Names of capabilities in txrdma and elsewhere, if neither contains the other."""

_CODES: Final = {
    ("init", "initialize"),
    ("training", "portconfigurationtraining"),
    ("errorrecovery", "linkerrorrecovery"),
}
"""Names of the same codes in other programs."""

_WRONG: Final = {("PortCounters", "QP1Dropped")}
"""Fields that libibmad reads from a different offset."""

_TEXT_SYNONYMS: Final = {
    "InboundPartEnf": "inboundEnforcementCap",
    "OutboundPartEnf": "outboundEnforcementCap",
}
