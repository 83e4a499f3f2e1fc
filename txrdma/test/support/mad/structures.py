"""
All structures, with the positions and names of their fields in other programs.

These are libibmad, tshark, the declarations of python-rdma, and published definitions. Fields that none of
them has are in L{UNSEEN} with the reason.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from types import ModuleType
from typing import Final, NamedTuple

import txrdma.cm.layouts.messages
import txrdma.iba.linkheaders
from txrdma.iba import headers
from txrdma.iba.linkheaders import LinkNextHeader, LRH
from txrdma.iba.path import IBPath
from txrdma.kit.wire import Layout
from txrdma.mad import vendor
from txrdma.mad.core.frames import frame, Keys, managementPacket
from txrdma.mad.layouts import baseboard, congestion, devices, messages, pma, rmppformats, sa, smp, traps
from txrdma.mad.layouts.attributes import allAttributes, Attribute, ManagementClass, Method
from txrdma.mad.layouts.messages import formatOf
from txrdma.test.support.mad.oracles import (
    libibmad,
    Place,
    placesOf,
    published,
    pythonRDMA,
    tiled,
    tshark,
    tsharkLinks,
)
from txrdma.test.support.mad.pythonrdma import FIELDS, LATER, STRUCTURES

MODULES: Final[tuple[ModuleType, ...]] = (
    headers,
    txrdma.iba.linkheaders,
    messages,
    rmppformats,
    smp,
    traps,
    sa,
    pma,
    congestion,
    baseboard,
    devices,
    vendor,
    txrdma.cm.layouts.messages,
)


@cache
def structures() -> tuple[type[Layout], ...]:
    """Return every layout that these modules declare, without those that only begin others."""
    return tuple(
        kind
        for module in MODULES
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, Layout)
        and kind.__module__ == module.__name__
        and hasattr(kind, "size")
        and not kind.__name__.startswith("_")
        and (not issubclass(kind, Attribute) or kind.rpcs)
    )


def attributes() -> tuple[type[Attribute], ...]:
    return tuple(kind for kind in structures() if issubclass(kind, Attribute))


def innerOf(kind: type[Layout]) -> Iterator[type[Layout]]:
    for field in kind.fields:
        if isinstance(field.type, type) and issubclass(field.type, Layout):
            yield field.type
            yield from innerOf(field.type)


def classOf(kind: type[Attribute]) -> ManagementClass:
    found = {(ManagementClass(number), each): one for (number, each), one in allAttributes().items()}
    classes = {number for (number, _), registered in found.items() if registered is kind}
    if not classes:  # another form of an attribute that is registered
        classes = {
            number
            for number, attribute in found
            if attribute == kind.attributeID and any(_prefix(number) in rpc for rpc in kind.rpcs)
        }
    known = (ManagementClass.SUBN_LID, ManagementClass.SUBN_ADM, ManagementClass.PERFORMANCE)
    return min(classes, key=lambda number: (number not in known, number))


def _prefix(managementClass: ManagementClass) -> str:
    return {
        ManagementClass.PERFORMANCE: "Performance",
        ManagementClass.CONG_MGT: "CongMgt",
        ManagementClass.VENDOR_0A: "Vend",
    }.get(managementClass, "-")


def datagram(kind: type[Attribute], content: bytes = b"") -> bytes:
    managementClass = classOf(kind)
    content = content or kind().encode()
    if managementClass == ManagementClass.SUBN_LID:
        return managementPacket(Method.GET_RESP, 7, kind.attributeID, 0, content, IBPath(), 0)
    method = Method.SEND if managementClass == ManagementClass.COMM_MGT else Method.GET_RESP
    return frame(managementClass, method, 7, kind.attributeID, 0, content, Keys(oui=kind.oui))


# The numbers that libibmad gives the fields of a structure, and the bit at which it begins for libibmad.
LIBIBMAD: Final[dict[type[Layout], tuple[int, tuple[range, ...]]]] = {
    kind: (base, tuple(numbers))
    for kind, base, *numbers in (
        (messages.MADHeader, 0, range(3, 9), range(13, 16)),
        (messages.MADHeaderDirected, 0, range(9, 13)),
        (messages.SMPFormat, 0, range(16, 17)),
        (messages.SMPFormatDirected, 0, range(17, 19), range(25, 27)),
        (messages.SAFormat, 0, range(19, 23)),
        (messages.PerformanceFormat, 0, range(24, 25)),
        (messages.RMPPHeader, 192, range(147, 157)),
        (messages.VendorOUIFormat, 0, range(192, 194)),
        (messages.CongMgtFormat, 0, range(520, 521)),
        (messages.Notice, 0, range(110, 118)),
        (messages.ClassPortInfo, 0, range(206, 228)),
        (smp.NodeDescription, 0, range(109, 110)),
        (smp.PortInfo, 0, range(27, 74), range(323, 327)),
        (smp.NodeInfo, 0, range(75, 87)),
        (smp.SwitchInfo, 0, range(88, 106)),
        (smp.LinearForwardingTable, 0, range(107, 108)),
        (smp.MulticastForwardingTable, 0, range(108, 109)),
        (smp.SLtoVLMappingTable, 0, range(190, 191)),
        (smp.VLArbitrationTable, 0, range(191, 192)),
        (smp.GUIDInfo, 0, range(205, 206), range(305, 313)),
        (smp.SMInfo, 0, range(142, 147)),
        (smp.ExtendedPortInfo, 0, range(515, 519)),
        (smp.PortInfoExtended, 0, range(616, 622), range(660, 665)),
        (traps.LinkDetails, 80, range(118, 119)),
        (traps.LocalChangeDetails, 80, range(119, 121)),
        (sa.MultiPathRecord, 0, range(157, 160)),
        (sa.PathRecord, 0, range(161, 167)),
        (sa.MCMemberRecord, 0, range(167, 179)),
        (sa.ServiceRecord, 0, range(179, 186)),
        (sa.GUIDInfoRecord, 0, range(313, 323)),
        (sa.NodeRecord, 0, range(583, 597)),
        (pma.PortCounters, 0, range(121, 141), range(659, 660)),
        (pma.PortCountersExtended, 0, range(194, 204), range(643, 658)),
        (pma.PortXmitDataSL, 0, range(228, 244)),
        (pma.PortRcvDataSL, 0, range(245, 261)),
        (pma.PortXmitDiscardDetails, 0, range(262, 266)),
        (pma.PortRcvErrorDetails, 0, range(267, 273)),
        (pma.PortSamplesControl, 0, range(274, 304)),
        (pma.PortSamplesResult, 0, range(598, 615)),
        (pma.PortExtendedSpeedsCounters, 0, range(328, 368)),
        (pma.PortExtendedSpeedsCountersRSFEC, 0, range(623, 642)),
        (pma.PortOpRcvCounters, 0, range(369, 371)),
        (pma.PortFlowCtlCounters, 0, range(372, 374)),
        (pma.PortVLOpPackets, 0, range(375, 391)),
        (pma.PortVLOpData, 0, range(392, 408)),
        (pma.PortVLXmitFlowCtlUpdateErrors, 0, range(409, 425)),
        (pma.PortVLXmitWaitCounters, 0, range(426, 442)),
        (pma.SwPortVLCongestion, 0, range(443, 459)),
        (pma.PortRcvConCtrl, 0, range(460, 462)),
        (pma.PortSLRcvFECN, 0, range(463, 479)),
        (pma.PortSLRcvBECN, 0, range(480, 496)),
        (pma.PortXmitConCtrl, 0, range(497, 498)),
        (pma.PortVLXmitTimeCong, 0, range(499, 514)),
        (congestion.CongestionInfo, 0, range(521, 523)),
        (congestion.CongestionKeyInfo, 0, range(524, 528)),
        (congestion.SwitchCongestionLog, 0, range(529, 535)),
        (congestion.SwitchCongestionLogEvent, 0, range(536, 540)),
        (congestion.CACongestionLog, 0, range(541, 544)),
        (congestion.CACongestionLogEvent, 0, range(545, 552)),
        (congestion.SwitchCongestionSetting, 0, range(553, 561)),
        (congestion.SwitchPortCongestionSettingElement, 0, range(562, 567)),
        (congestion.CACongestionSetting, 0, range(568, 570)),
        (congestion.CACongestionEntry, 0, range(571, 575)),
        (congestion.CongestionControlTable, 0, range(576, 577)),
        (congestion.CongestionControlTableEntry, 0, range(578, 580)),
        (congestion.TimeStamp, 0, range(581, 582)),
    )
}

LEFT_OUT: Final = {
    1: "the halves of a GID are no fields",
    2: "the halves of a GID are no fields",
    160: "the GIDs that follow a MultiPathRecord are no part of it",
    **dict.fromkeys(range(186, 190), "a reading of a ServiceRecord's data that DAPL agreed on"),
}
"""Fields of libibmad that txrdma does not have."""


_TSHARK_4: Final = "newer than tshark 4.0 and libibmad"
_LENGTHS: Final = (
    "tshark and libibmad show no bits of it; recorded packets (test_recorded) show their meaning"
)
_HEAD: Final = "libibmad does not name the selectors of port and counters, which are those of PortCounters"

UNSEEN: Final[dict[str, tuple[str, str]]] = {
    "FlowControl": ("crc", "python-rdma omits it, and tshark has no packet type for it; 7.8.2"),
    "RMPPHeader": ("last first active", _LENGTHS),
    "RMPPShortHeader": ("last first active", _LENGTHS),
    "BMFormat": ("*", "no other program has it; 16.2.1"),
    "DevMgtFormat": ("rmpp", "device management has no long messages; its offset is that of SAFormat"),
    "BKeyInfo": ("*", "no other program has it; 16.2.3.2"),
    **dict.fromkeys(
        ("VendorMADsTable", "HierarchyInfo", "CableInfo"), ("*", "bytes: no public source has more")
    ),
    **dict.fromkeys(
        (
            *("WriteVPD", "ReadVPD", "ResetIBML", "SetModulePMControl", "GetModulePMControl"),
            *("SetUnitPMControl", "GetUnitPMControl", "SetIOCPMControl", "GetIOCPMControl", "SetModuleState"),
            *("SetModuleAttention", "GetModuleStatus", "IB2IBML", "IB2CME", "IB2MME", "OEM"),
        ),
        ("*", "bytes: no other program decodes their contents, which volume 2 defines"),
    ),
    "LinkSpeedWidthPairsTable": ("speedTwoPtFive speedFive speedTen", "tshark shows only a bit of each"),
    "LinkSpeedWidthPairsTableRecord": ("*", "tshark decodes it as the table alone; 15.2.5"),
    "PortInfoExtendedRecord": ("portInfoExtended", "OpenSM has it as one; it fills the record"),
    "PortInfoRecord": (
        "linkSpeedExtActive2 linkSpeedExtSupported2 linkSpeedExtEnabled2",
        _TSHARK_4 + "; their offsets are those of PortInfo",
    ),
    "MultiPathRecord": ("qosClass", _TSHARK_4 + "; it is before serviceLevel, as in PathRecord"),
    "PortCounters": ("qp1Dropped", "libibmad reads it from the offset of VL15Dropped"),
    "MlxGeneralInfoExtended": ("capabilityMask", "vendstat stops before it; mstflint tests a bit of it"),
    "OpenIBPing": ("*", "text"),
    "OpenIBSystemPing": ("*", "text"),
    "CMPath": ("sapSupported", "Linux has it in the alternate path of a REQ"),
    "REQ": ("vendorID", _TSHARK_4),
    "REP": ("vendorIDHigh vendorIDMiddle vendorIDLow", _TSHARK_4),
    "SIDRREP": ("vendorIDHigh vendorIDLow", _TSHARK_4),
    **dict.fromkeys(
        ("PortRcvConCtrl", "PortSLRcvFECN", "PortSLRcvBECN", "PortXmitConCtrl", "PortVLXmitTimeCong"),
        ("portSelect counterSelect", _HEAD),
    ),
    **dict.fromkeys(("PrepareToTest", "TestDeviceOnce", "TestDeviceLoop"), ("*", "it has no fields")),
}
"""Fields without a reference, by structure, with the reason; C{*} is the whole structure."""

ERRORS: Final = {
    ("VendorDiag", "diagData"): "python-rdma has 16 bits reserved before it, and tshark has not",
    (
        "MulticastForwardingTableRecord",
        "position",
    ): "python-rdma's is 2 bits later than OpenSM's and tshark's",
    (
        "MulticastForwardingTableRecord",
        "blockNum",
    ): "python-rdma's is a bit longer than OpenSM's and tshark's",
    ("MultiPathRecord", "SDGID"): "python-rdma counted the first of the GIDs that follow",
    ("PortInfoExtended", "NDRFECModeEnabled"): "libibmad exchanges 16 bits in words of 32 from HDR on",
    ("OpenIBSystemPing", "cookie"): "python-rdma sends a number for a text",
    ("MRA", "privateData"): "python-rdma has it 16 bits later than Linux",
    ("SIDRREP", "*python-rdma"): "python-rdma has that of an older release; Linux agrees with txrdma",
}
"""Errors of other programs, according to the specification or to two others."""


class Witness(NamedTuple):
    source: str
    place: Place


Seen = dict[type[Layout], list[Witness]]


@cache
def witnesses() -> Seen:
    found: Seen = defaultdict(list)
    kinds = attributes()
    for kind, places in zip(kinds, tshark([datagram(kind) for kind in kinds]), strict=True):
        base = 8 * (kind.dataOffset or formatOf(classOf(kind)).dataOffset)
        for place in places:
            if base <= place.offset < base + kind.size * 8:
                if not re.match("reserved|invariant|mad.data|smp", place.name):
                    found[kind].append(Witness("tshark", place._replace(offset=place.offset - base)))
    for kind0, seenThere in (*_headersSeen(), *_trapsSeen()):
        found[kind0] += seenThere
    for number, place in libibmad().items():
        for kind2, (base, ranges) in LIBIBMAD.items():
            if any(number in numbers for numbers in ranges):
                found[kind2].append(Witness("libibmad", place._replace(offset=place.offset - base)))
    for kind3 in structures():
        names = [name for name, ours in STRUCTURES.items() if ours == kind3.__name__]
        for name in names:
            found[kind3] += [Witness("python-rdma", place) for place in fromPythonRDMA(name)]
        found[kind3] += [Witness("published", place) for place in published().get(kind3.__name__, ())]
    return found


def _headersSeen() -> Iterator[tuple[type[Layout], list[Witness]]]:
    where: list[tuple[type[Layout], LinkNextHeader, int, int]] = [
        (LRH, LinkNextHeader.BTH, 0x04, 0),
        (txrdma.iba.linkheaders.RWH, LinkNextHeader.RAW, 0x04, 8),
        (headers.GRH, LinkNextHeader.GRH, 0x04, 8),
        (headers.BTH, LinkNextHeader.BTH, 0x04, 8),
        (txrdma.iba.linkheaders.RDETH, LinkNextHeader.BTH, 0x44, 20),
        (headers.DETH, LinkNextHeader.BTH, 0x64, 20),
        (headers.RETH, LinkNextHeader.BTH, 0x0C, 20),
        (headers.AtomicETH, LinkNextHeader.BTH, 0x13, 20),
        (headers.AETH, LinkNextHeader.BTH, 0x11, 20),
        (headers.AtomicAckETH, LinkNextHeader.BTH, 0x12, 24),
        (headers.ImmDt, LinkNextHeader.BTH, 0x05, 20),
        (headers.IETH, LinkNextHeader.BTH, 0x17, 20),
    ]
    packets = [
        LRH(linkNextHeader=following, packetLength=18).encode()
        + (headers.GRH(version=6, nextHeader=27).encode() if following is LinkNextHeader.GRH else b"")
        + headers.BTH(opcode=headers.Opcode(opcode)).encode()
        + bytes(60)
        for _, following, opcode, _ in where
    ]
    for (kind, _, _, begin), places in zip(where, tsharkLinks(packets), strict=True):
        base, end = begin * 8, (begin + kind.size) * 8
        yield (
            kind,
            [
                Witness("tshark", place._replace(offset=place.offset - base))
                for place in places
                if base <= place.offset and place.offset + place.width <= end and "reserved" not in place.name
            ],
        )


def _trapsSeen() -> Iterator[tuple[type[Layout], list[Witness]]]:
    notices = [messages.Notice(isGeneric=True, trapNumber=number) for number in traps.Trap]
    datagrams = [managementPacket(Method.TRAP, 7, 2, 0, notice.encode(), IBPath(), 0) for notice in notices]
    base = (64 + 10) * 8
    for notice, places in zip(notices, tshark(datagrams), strict=True):
        details = traps.detailsOf(notice)
        assert details is not None
        yield (
            type(details),
            [
                Witness("tshark", place._replace(offset=place.offset - base))
                for place in places
                if place.offset >= base and place.name.startswith("trap.")
            ],
        )


def fromPythonRDMA(name: str) -> list[Place]:
    base = LATER.get(name, 0)
    return [
        place._replace(offset=place.offset - base) for place in pythonRDMA()[name][1] if place.offset >= base
    ]


_WORDS: Final = (
    ("trafficclass", "tc"), ("tclass", "tc"), ("servicelevel", "sl"), ("response", "resp"), ("value", "val"),
    ("capability", "cap"), ("multicast", "mcast"), ("arbitration", "arb"), ("partition", "part"),
    ("enforcement", "enf"), ("enforce", "enf"), ("inbound", "inb"), ("outbound", "outb"),
    ("operational", "oper"), ("default", "def"), ("linkstate", "portstate"), ("packet", "pkt"),
    ("physlinkstate", "portphysicalstate"), ("physical", "phys"), ("phy", "phys"), ("physss", "physs"),
    ("hoplimit", "hl"), ("systemimage", "system"), ("device", "dev"), ("primary", "prim"), ("counter", "ctr"),
    ("optimized", "opt"), ("programming", ""), ("portxmit", "xmt"), ("xmit", "xmt"), ("portrcv", "rcv"),
    ("timeout", "tout"), ("initiatordepth", "initdepth"), ("service", "serv"), ("portzero", "port0"),
    ("resources", "res"), ("starting", "start"), ("retry", "retr"), ("rejected", "rej"), ("supported", "sup"),
    ("enabled", "enable"), ("congestion", "cong"), ("additionalinformation", "additionalinfo"),
)  # fmt: skip


@cache
def normal(name: str, hasIndex: bool = True) -> str:
    """Return a name without abbreviations and without a trailing index."""
    bare = name.rsplit(".", 1)[-1].lower()
    if hasIndex:
        bare = re.sub(r"s?\[\d+\]$|\d+$", "", bare)
    plain = re.sub(r"[^a-z0-9]", "", bare)
    for long, short in _WORDS:
        plain = plain.replace(long, short)
    return plain


def alike(ours: str, reference: str, others: Iterable[str] = ()) -> bool:
    hasIndex = ours.endswith("]")
    one, other = normal(ours, hasIndex), normal(reference, hasIndex)
    if one == other or (re.sub(r"\[\d+\]$", "", ours), reference) in FIELDS:
        return True
    return (one in other or other in one) and other not in {normal(name, False) for name in others}


def misnamed(kinds: Iterable[type[Layout]], seen: Seen) -> set[str]:
    found = set()
    for kind in kinds:
        names = {place.name for place, isReserved in placesOf(kind) if not isReserved}
        for place, isReserved in placesOf(kind):
            reference = {
                other.name
                for _, other in seen.get(kind, ())
                if (other.offset, other.width) == (place.offset, place.width)
            }
            if reference and not isReserved:
                if not any(alike(place.name, name, names - {place.name}) for name in reference):
                    bare = re.sub(r"\[\d+\]$", "", place.name)
                    found.add(f"{kind.__name__}.{bare} is {', '.join(sorted(reference))}")
    return found


def missing(kinds: Iterable[type[Layout]], seen: Seen, listed: dict[str, tuple[str, str]]) -> list[str]:
    kinds = tuple(kinds)
    inner = {part for kind in kinds for part in innerOf(kind)}
    return [
        f"{kind.__name__}.{place.name} at {place.offset}, {place.width} bits"
        for kind in kinds
        if kind not in inner or seen.get(kind)  # otherwise it is checked inside the containing structure
        for place in _missingIn(kind, seen, listed.get(kind.__name__, ("", ""))[0].split())
    ]


def _missingIn(kind: type[Layout], seen: Seen, names: list[str]) -> Iterator[Place]:
    those = seen.get(kind, [])
    known = {(place.offset, place.width) for _, place in those}

    def isSeen(place: Place) -> bool:
        parts = {(part.offset, part.width) for _, part in those if alike(place.name, part.name)}
        return (place.offset, place.width) in known or tiled(place, parts)

    for field in kind.fields:
        if field.reserved or "*" in names or field.name in names:
            continue
        whole = Place(field.offset, field.width * (field.count or 1), field.name)
        isTakenApart = any(_isWithin(part, whole) for _, part in those)
        if (whole.offset, whole.width) in known and not isTakenApart:
            continue
        isLayout = isinstance(field.type, type) and issubclass(field.type, Layout)
        parts = (
            [
                place
                for place, hidden in placesOf(field.type)
                if not hidden and place.name not in {*names, *_unseen(field.type)}
            ]
            if isLayout
            else [Place(0, field.width, field.name)]
        )
        if isLayout and (issubclass(field.type, Attribute) or seen.get(field.type)):
            # It is checked separately; here only its offset is checked.
            if field.offset and not all(isSeen(_moved(part, field.offset)) for part in parts):
                yield whole
            continue
        for index in range(field.count or 1):
            for part in parts:
                place = _moved(part, field.offset + index * field.width)
                if not isSeen(place) and place.name not in names:
                    yield place


def _unseen(kind: type[Layout]) -> list[str]:
    return UNSEEN.get(kind.__name__, ("", ""))[0].split()


def _isWithin(part: Place, whole: Place) -> bool:
    end = part.offset + part.width
    return whole.offset <= part.offset and end <= whole.offset + whole.width and part.width < whole.width


def _moved(place: Place, bits: int) -> Place:
    return place._replace(offset=place.offset + bits)


def unknownPeers(seen: Seen, errors: dict[tuple[str, str], str]) -> list[str]:
    found = []
    for kind, those in seen.items():
        ours = {(place.offset, place.width) for place, _ in placesOf(kind)}
        ours |= {(field.offset, field.width * (field.count or 1)) for field in kind.fields}
        for source, place in those:
            if (
                source == "tshark"
                or {(kind.__name__, place.name), (kind.__name__, "*" + source)} & errors.keys()
            ):
                continue
            reference = {(other.offset, other.width) for who, other in those if who == source}
            if (place.offset, place.width) in ours or tiled(place, ours):
                continue
            if not any(_isPartOf(one, place, reference) for one in ours):
                found.append(f"{kind.__name__}: {source} has {place}")
    return found


def _isPartOf(one: tuple[int, int], place: Place, reference: set[tuple[int, int]]) -> bool:
    begin, end = one[0], sum(one)
    after = place.offset + place.width
    return (
        begin <= place.offset
        and after <= end
        and tiled(Place(begin, place.offset - begin, ""), reference)
        and tiled(Place(after, end - after, ""), reference)
    )
