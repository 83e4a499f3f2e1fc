"""
What people read is what infiniband-diags prints: libibmad is asked for its text of the same bytes.

Names of codes are compared without blanks, underscores and case; numbers as numbers.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import re
from collections.abc import Iterator
from typing import Any, Final

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.iba.verbs import NodeType, PhysicalState, PortState
from txrdma.mad.layouts import messages, pma, smp
from txrdma.mad.layouts.attributes import Attribute
from txrdma.mad.layouts.values import DownDefault, PathMTU, PortCapability, PortCapability2
from txrdma.test.support.mad.structures import alike

_ROW: Final = re.compile(r"^(\w+):\.+(.*)$", re.MULTILINE)


def theirText(kind: str, raw: bytes) -> str:
    """
    What libibmad prints of a structure.

    @raise SkipTest: it is not installed.
    """
    name = ctypes.util.find_library("ibmad")
    if name is None:
        raise SkipTest("libibmad is not installed: it comes with infiniband-diags")
    said = ctypes.create_string_buffer(1 << 16)
    content = ctypes.create_string_buffer(raw.ljust(512, b"\0"))
    print_ = getattr(ctypes.CDLL(name), f"mad_dump_{kind}")
    print_.restype = None
    print_(said, len(said), content, len(raw))
    return said.value.decode()


def rows(text: str) -> list[tuple[str, str]]:
    return _ROW.findall(text)


def plainly(text: str) -> object:
    said = re.sub(r"\s*\(.*\)$", "", text).lower()
    if "undefined" in said or "undefined" in text:
        return "undefined"
    if said == "no extended speed":
        return 0
    if " or " in said:
        return frozenset(said.split(" or "))
    said = said.replace("_", "").replace(" ", "").removeprefix("mtu")
    try:
        return int(said, 0)
    except ValueError:
        return said


def valueIn(text: str, name: str) -> str:
    found = dict(rows(text))
    return found[name] if name in found else next(v for n, v in rows(text) if alike(name, n))


def codes() -> Iterator[tuple[str, str, list[int]]]:
    yield "portState", "LinkState", [int(code) for code in PortState if 1 <= code <= 4]
    yield "portPhysicalState", "PhysLinkState", [int(code) for code in PhysicalState if 1 <= code <= 7]
    yield "linkDownDefaultState", "LinkDownDefState", [int(code) for code in DownDefault if code]
    for ours, theirs in (("neighborMTU", "NeighborMTU"), ("mtuCap", "MtuCap")):
        yield ours, theirs, [int(code) for code in PathMTU if code]
    for ours, theirs in (("vlCap", "VLCap"), ("operationalVLs", "OperVLs")):
        yield ours, theirs, [1, 2, 3, 4, 5]
    yield "linkWidthActive", "LinkWidthActive", [1, 2, 4, 8, 16]
    for ours, theirs in (
        ("linkWidthEnabled", "LinkWidthEnabled"),
        ("linkWidthSupported", "LinkWidthSupported"),
    ):
        yield ours, theirs, [1, 2, 3, 11, 18, 31, 32, 35]
    yield "linkSpeedActive", "LinkSpeedActive", [1, 2, 4]
    for ours, theirs in (
        ("linkSpeedEnabled", "LinkSpeedEnabled"),
        ("linkSpeedSupported", "LinkSpeedSupported"),
    ):
        yield ours, theirs, [1, 3, 5, 7]
    yield "linkSpeedExtActive", "LinkSpeedExtActive", [0, 1, 2, 4, 8]
    yield "linkSpeedExtSupported", "LinkSpeedExtSupported", [0, 1, 3, 7, 15]
    yield "linkSpeedExtEnabled", "LinkSpeedExtEnabled", [0, 1, 3, 15, 30]


class TextTests(SynchronousTestCase):
    def same(self, ours: Attribute, name: str, theirs: str, other: str) -> None:
        one, two = plainly(valueIn(str(ours), name)), plainly(valueIn(theirs, other))
        if (one, two) not in _CODES:
            self.assertEqual(one, two, name)

    def test_codes(self) -> None:
        for name, theirs, numbers in codes():
            for number in numbers:
                values: dict[str, Any] = {"linkWidthActive": 1, name: number}
                info = smp.PortInfo(**values)
                self.same(info, name, theirText("portinfo", info.encode()), theirs)

    def test_nodes(self) -> None:
        for kind in (NodeType.CHANNEL_ADAPTER, NodeType.SWITCH, NodeType.ROUTER):
            info = smp.NodeInfo(nodeType=kind)
            self.same(info, "nodeType", theirText("nodeinfo", info.encode()), "NodeType")

    def test_capabilities(self) -> None:
        for field, names in (("capabilityMask", PortCapability), ("capabilityMask2", PortCapability2)):
            for flag in names:
                values: dict[str, Any] = {"linkWidthActive": 1, field: int(flag)}
                info = smp.PortInfo(**values)
                theirs = re.findall(
                    r"^\s+Is(\w+?)(?:[sS]upported)?$", theirText("portinfo", info.encode()), re.M
                )
                assert flag.name is not None
                self.assertEqual(len(theirs), 1, flag.name)
                one, other = flag.name.lower().replace("_", ""), theirs[0].lower()
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
            told = kind.decode(raw)
            theirs, ours = rows(theirText(name, raw)), rows(str(told))
            seen = 0
            for (mine, _), (other, text) in zip(ours, theirs, strict=True):
                self.assertTrue(alike(mine, other) or _SYNONYMS.get(other) == mine, (mine, other))
                if (kind.__name__, other) in _WRONG:
                    continue
                value: Any = getattr(told, mine)
                number = value if isinstance(value, int) else int.from_bytes(value.raw, "big")
                said = re.sub(r"\s*\(.*\)$", "", text)
                if said.startswith("0x") or said.isdigit():
                    self.assertEqual(int(said, 0), number, (kind.__name__, mine, other))
                    seen += 1
                elif re.fullmatch(r"[0-9a-f]{32}", said):
                    self.assertEqual(int(said, 16), number, (kind.__name__, mine, other))
                    seen += 1
            self.assertGreaterEqual(seen, len(theirs) - 4, name)


_CAPABILITIES: Final = {
    ("vendormads", "vendorspecificmadstable"),
    ("multicastpkeytrapsuppression", "mcastpkeytrapsuppression"),
    ("communicationmanagement", "communicatonmanagement"),
    ("snmptunnelling", "snmptunneling"),
    ("clientreregistration", "clientregistration"),
    ("mkeyprotectbitsextended", "mkeyprotectbitsext"),
}
"""Ours and theirs, where neither is in the other."""

_CODES: Final = {
    ("init", "initialize"),
    ("training", "portconfigurationtraining"),
    ("errorrecovery", "linkerrorrecovery"),
}
"""What the same codes are called."""

_WRONG: Final = {("PortCounters", "QP1Dropped")}
"""What libibmad reads from elsewhere."""

_SYNONYMS: Final = {"InboundPartEnf": "inboundEnforcementCap", "OutboundPartEnf": "outboundEnforcementCap"}
