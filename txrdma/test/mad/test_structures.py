"""
Every attribute has its fields where others have them: libibmad, tshark.

What neither of them knows stands on a list with the reason; a structure that is not there and has no witness
fails.
"""

from __future__ import annotations

import json
import re
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

import txrdma.cm.messages
import txrdma.mad.devices
import txrdma.mad.pma
import txrdma.mad.sa
import txrdma.mad.smp  # noqa: F401  (declared by being imported)
from txrdma.iba.path import IBPath
from txrdma.iba.types import LID
from txrdma.mad import messages, pma, sa, smp, traps
from txrdma.mad._frames import frame, managementPacket
from txrdma.mad.attributes import allAttributes, Attribute, ManagementClass, Method
from txrdma.mad.dump import dumped, payloadOf
from txrdma.mad.messages import formatOf
from txrdma.mad.sa import componentsOf, Record
from txrdma.test.mad.oracles import libibmad, Place, placesOf, tshark


def _best(kind: type[Attribute]) -> ManagementClass:
    """A class that carries it: one that tshark takes apart, if there is one."""
    classes = {number for (number, _), registered in allAttributes().items() if registered is kind}
    known = (ManagementClass.SUBN_LID, ManagementClass.SUBN_ADM, ManagementClass.PERFORMANCE)
    return min(classes, key=lambda number: (number not in known, number))


_CLASSES: Final = sorted(
    {(_best(kind), kind) for kind in allAttributes().values()},
    key=lambda pair: (pair[0], pair[1].attributeID, pair[1].__name__),
)
"""Each attribute once, with a class that carries it."""

# The numbers that libibmad gives the fields of a structure.
_LIBIBMAD: Final[dict[type[Attribute], list[range]]] = {
    smp.PortInfo: [range(27, 74), range(323, 327)],
    smp.NodeInfo: [range(75, 87)],
    smp.SwitchInfo: [range(88, 106)],
    smp.GUIDInfo: [range(305, 313)],
    smp.SMInfo: [range(142, 147)],
    smp.ExtendedPortInfo: [range(515, 519)],
    messages.Notice: [range(110, 118)],
    messages.ClassPortInfo: [range(206, 228)],
    sa.PathRecord: [range(161, 167)],
    sa.MCMemberRecord: [range(167, 179)],
    sa.ServiceRecord: [range(179, 185)],
    sa.GUIDInfoRecord: [range(313, 323)],
    sa.NodeRecord: [range(583, 597)],
    pma.PortCounters: [range(121, 141), range(659, 660)],
    pma.PortCountersExtended: [range(194, 204), range(643, 658)],
    pma.PortXmitDataSL: [range(228, 244)],
    pma.PortRcvDataSL: [range(245, 261)],
    pma.PortXmitDiscardDetails: [range(262, 266)],
    pma.PortRcvErrorDetails: [range(267, 273)],
    pma.PortSamplesControl: [range(274, 303)],
    pma.PortSamplesResult: [range(598, 615)],
    pma.PortExtendedSpeedsCounters: [range(328, 368)],
    pma.PortOpRcvCounters: [range(369, 371)],
    pma.PortFlowCtlCounters: [range(372, 374)],
    pma.PortVLOpPackets: [range(375, 391)],
    pma.PortVLOpData: [range(392, 408)],
    pma.PortVLXmitFlowCtlUpdateErrors: [range(409, 425)],
    pma.PortVLXmitWaitCounters: [range(426, 442)],
    pma.SwPortVLCongestion: [range(443, 459)],
    pma.PortRcvConCtrl: [range(460, 462)],
    pma.PortSLRcvFECN: [range(463, 479)],
    pma.PortSLRcvBECN: [range(480, 496)],
    pma.PortXmitConCtrl: [range(497, 498)],
    pma.PortVLXmitTimeCong: [range(499, 514)],
}

_NO_HEAD: Final = "libibmad has no names for what selects the port and the counters; it is as in PortCounters"
_NOT_SHOWN: Final = "tshark 4.0 and libibmad know the class, but not this attribute"
_PLAIN: Final = "one field of a fixed length, which neither of them takes apart"

# What has no witness, by structure; "*" is all of it.
_UNSEEN: Final[dict[str, tuple[str, str]]] = {
    "PKeyTable": ("pkeys", "tshark 4.0 shows P_Keys as blocks; 32 of 16 bits fill the attribute"),
    "MulticastForwardingTable": ("portMasks", "tshark 4.0 shows the first 16 of 32"),
    "PortInfo": (
        "multicastPKeyTrapSuppressionEnabled",
        "one bit longer than libibmad's, as release 1.3 has it",
    ),
    "PortInfoRecord": ("options", "newer than tshark's"),
    "ServiceRecord": ("data", "tshark and libibmad show the data as one"),
    "PathRecord": ("serviceID qosClass", "reserved in the older form that tshark knows"),
    "MultiPathRecord": ("qosClass serviceLevel serviceIDUpper serviceIDLower", "as in PathRecord"),
    "PortSamplesControl": ("counterMask", "libibmad shows the masks as one"),
    "PortSamplesResultExtended": ("*", _NOT_SHOWN),
    "PortCounters": ("qp1Dropped", "libibmad reads it from VL15Dropped's place"),
    "REQ": ("vendorID sapSupported localGID remoteGID", "newer than tshark's, or shown as IP addresses"),
    "REP": ("vendorID srq", "newer than tshark's"),
}
for _name in (
    "PortXmitDataSL PortRcvDataSL PortXmitDiscardDetails PortRcvErrorDetails PortOpRcvCounters "
    "PortFlowCtlCounters PortVLOpPackets PortVLOpData PortVLXmitFlowCtlUpdateErrors PortVLXmitWaitCounters "
    "SwPortVLCongestion PortRcvConCtrl PortSLRcvFECN PortSLRcvBECN PortXmitConCtrl PortVLXmitTimeCong"
).split():
    _UNSEEN[_name] = ("opCode portSelect counterSelect", _NO_HEAD)
for _name in (
    "MRA SIDRREQ SIDRREP LAP APR IOUnitInfo IOControllerProfile ServiceEntries DiagnosticTimeout DiagCode "
    "BKeyInfo"
).split():
    _UNSEEN[_name] = ("*", _NOT_SHOWN)
for _name in ("CommunityInfo", "PDUInfo"):
    _UNSEEN[_name] = ("*", _PLAIN)
for _name in ("PrepareToTest", "TestDeviceOnce", "TestDeviceLoop"):
    _UNSEEN[_name] = ("*", "it has no fields")

# Where an oracle is wrong: facts that were looked up in the specification.
_ORACLES_ERR: Final = {
    ("Notice", "NoticeCount"): "libibmad counts the toggle bit in",
    ("ClassPortInfo", "RedirectFL"): "libibmad counts the service level in",
    ("ClassPortInfo", "TrapFL"): "libibmad counts the service level in",
    ("MCMemberRecord", "McastMemFlowLbl"): "libibmad counts the service level in",
    ("PortSamplesControl", "CounterMasks1to9"): "nine masks of three bits, and what is before them",
    ("PortSamplesControl", "CounterMasks10to14"): "five masks of three bits, and what is before them",
    ("ServiceRecord", "ServRecData"): "all of the data as one",
}

_WORDS: Final = (
    ("trafficclass", "tc"), ("tclass", "tc"), ("servicelevel", "sl"), ("response", "resp"), ("value", "val"),
    ("capability", "cap"), ("multicast", "mcast"), ("arbitration", "arb"), ("partition", "part"),
    ("enforcement", "enf"), ("enforce", "enf"), ("inbound", "inb"), ("outbound", "outb"),
    ("operational", "oper"), ("default", "def"), ("linkstate", "portstate"), ("packet", "pkt"),
    ("physlinkstate", "portphysicalstate"), ("physical", "phys"), ("phy", "phys"), ("physss", "physs"),
    ("hoplimit", "hl"), ("systemimage", "system"), ("device", "dev"), ("primary", "prim"), ("counter", "ctr"),
    ("optimized", "opt"), ("programming", ""), ("portxmit", "xmt"), ("xmit", "xmt"), ("portrcv", "rcv"),
    ("timeout", "tout"), ("initiatordepth", "initdepth"), ("service", "serv"), ("portzero", "port0"),
    ("resources", "res"), ("starting", "start"), ("retry", "retr"), ("rejected", "rej"),
)  # fmt: skip


def normal(name: str) -> str:
    """A name without how it is abbreviated, and without an index at its end."""
    plain = re.sub(r"[^a-z0-9]", "", re.sub(r"s?\[\d+\]$|\d+$", "", name.rsplit(".", 1)[-1].lower()))
    for long, short in _WORDS:
        plain = plain.replace(long, short)
    return plain


def alike(ours: str, theirs: str) -> bool:
    """Whether the names may be of the same thing."""
    one, other = normal(ours), normal(theirs)
    return one in other or other in one


def zeros(managementClass: int, kind: type[Attribute]) -> bytes:
    """An answer with nothing but zeros in it."""
    if managementClass == ManagementClass.SUBN_LID:
        return managementPacket(Method.GET_RESP, 7, kind.attributeID, 0, kind().encode(), IBPath(), 0)
    method = Method.SEND if managementClass == ManagementClass.COMM_MGT else Method.GET_RESP
    return frame(managementClass, method, 7, kind.attributeID, 0, kind().encode())


class PlaceTests(SynchronousTestCase):
    """Where fields are."""

    def witnesses(self) -> dict[type[Attribute], dict[tuple[int, int], list[Place]]]:
        """What the oracles have, by structure and place."""
        found: dict[type[Attribute], dict[tuple[int, int], list[Place]]] = {}
        for (managementClass, kind), places in zip(
            _CLASSES, tshark([zeros(*pair) for pair in _CLASSES]), strict=True
        ):
            base = formatOf(managementClass).dataOffset * 8  # type: ignore[attr-defined]  # every frame has it
            seen = found.setdefault(kind, {})
            for place in places:
                if place.offset >= base and not re.match("reserved|invariant|mad.data|smp", place.name):
                    moved = place._replace(offset=place.offset - base)
                    seen.setdefault((moved.offset, moved.width), []).append(moved)
        for kind, ranges in _LIBIBMAD.items():
            for number in (number for numbers in ranges for number in numbers if number in libibmad()):
                place = libibmad()[number]
                found[kind].setdefault((place.offset, place.width), []).append(place)
        return found

    def test_everyField(self) -> None:
        """Each field has a witness at its place, or stands on the list."""
        missing = []
        for kind, seen in self.witnesses().items():
            listed = _UNSEEN.get(kind.__name__, ("", ""))[0].split()
            inner = {
                place
                for field in kind.fields
                if isinstance(field.type, type) and issubclass(field.type, Attribute)
                for place, _ in placesOf(field.type, field.offset)
            }
            for place, isReserved in placesOf(kind):
                if place in inner:
                    continue  # an attribute that is looked at by itself
                if (place.offset, place.width) in seen or isReserved or "*" in listed:
                    continue
                if place.offset == 0 and place.width == kind.size * 8:
                    continue  # it fills the attribute
                if not any(place.name.startswith(name) for name in listed):
                    missing.append(f"{kind.__name__}.{place.name} at {place.offset}, {place.width} bits")
        self.assertEqual(missing, [], "\n".join(missing))

    def test_everyWitness(self) -> None:
        """What libibmad names has a place with us, too, but for its known errors."""
        strange = []
        for kind, ranges in _LIBIBMAD.items():
            ours = {(place.offset, place.width) for place, _ in placesOf(kind)}
            for number in (number for numbers in ranges for number in numbers if number in libibmad()):
                place = libibmad()[number]
                if (place.offset, place.width) not in ours and (
                    kind.__name__,
                    place.name,
                ) not in _ORACLES_ERR:
                    strange.append(f"{kind.__name__}: {place}")
        self.assertEqual(strange, [])

    def test_names(self) -> None:
        """At one place the same thing is meant."""
        strange = set()
        for kind, seen in self.witnesses().items():
            for place, isReserved in placesOf(kind):
                theirs = [other.name for other in seen.get((place.offset, place.width), ())]
                if theirs and not isReserved and not any(alike(place.name, name) for name in theirs):
                    strange.add(f"{kind.__name__}.{place.name} is {', '.join(theirs)}")
        left = sorted(strange - _SYNONYMS)
        self.assertEqual(left, [], "\n".join(left))

    def test_lists(self) -> None:
        """The lists name structures that there are."""
        names = {kind.__name__ for _, kind in _CLASSES}
        self.assertEqual(set(_UNSEEN) - names, set())
        self.assertEqual({name for name, _ in _ORACLES_ERR} - names, set())


# What is called otherwise, and the same.
_SYNONYMS: Final = frozenset(
    {
        "PortInfo.gidPrefix is portinfo.guid",
        "PortInfoRecord.gidPrefix is portinfo.guid",
        "REJ.additionalInfo is cm.rej.ari",
        "REJ.messageRejected is cm.rej.msgrej",
        "REJ.rejectInfoLength is cm.rej.rejinfolen",
        "REP.endToEndFlowControl is cm.rep.e2eflowctrl",
        "REP.localCommID is cm.rep",
        "REP.responderResources is cm.rep.respres",
        "REP.targetACKDelay is cm.rep.tgtackdelay",
        "REQ.endToEndFlowControl is cm.req.e2eflowctrl",
        "REQ.extendedTransport is cm.req.ext_transport",
        "REQ.hopLimit is cm.req.alt_hoplim",
        "REQ.hopLimit is cm.req.prim_hoplim",
        "REQ.localCMResponseTimeout is cm.req.localresptout",
        "REQ.localCommID is cm.req",
        "REQ.pathMTU is cm.req.pppmtu",
        "REQ.remoteCMResponseTimeout is cm.req.remoteresptout",
        "REQ.trafficClass is cm.req.alt_tfcclass",
        "REQ.trafficClass is cm.req.prim_tfcclass",
        "REQ.transport is cm.req.transpsvctype",
    }
)


def contents(kind: type[Attribute]) -> st.SearchStrategy[bytes]:
    """Any bytes of its length."""
    return st.binary(min_size=kind.size, max_size=kind.size)


class EveryStructureTests(SynchronousTestCase):
    """What holds for all of them."""

    @settings(max_examples=400)
    @given(st.data())
    def test_roundTrip(self, data: st.DataObject) -> None:
        """Any bytes can be read, and are made again; text and JSON are to be had of them."""
        _, kind = data.draw(st.sampled_from(_CLASSES))
        raw = data.draw(contents(kind))
        read = kind.decode(raw)
        self.assertEqual(read.encode(), raw)
        self.assertEqual(kind.decode(read.encode()), read)
        json.dumps(read.toDict())
        shown = [place.name for place, isReserved in placesOf(kind) if not isReserved]
        self.assertEqual(len(str(read).splitlines()), len(shown))

    @settings(max_examples=200)
    @given(st.data())
    def test_dump(self, data: st.DataObject) -> None:
        """A datagram of it can be dumped, and its payload found."""
        managementClass, kind = data.draw(st.sampled_from(_CLASSES))
        datagram = zeros(managementClass, kind)
        self.assertEqual(payloadOf(datagram), kind())
        self.assertIn(kind.__name__, dumped(datagram, 1))
        dumped(data.draw(st.binary(max_size=300)), 3)

    def test_components(self) -> None:
        """The component masks of all records name fields, and none reaches beyond 64 bits."""
        for _, kind in _CLASSES:
            if issubclass(kind, Record):
                masks, _ = componentsOf(kind)
                self.assertTrue(masks, kind)
                self.assertLess(max(masks.values()), 1 << 64)


class NoticeTests(SynchronousTestCase):
    """What notices tell."""

    def test_details(self) -> None:
        """libibmad has the LIDs and the capability mask of traps where we have them."""
        table = {place.name: place for place in libibmad().values() if place.name.startswith("NoticeData")}
        base = table["NoticeDataDetails"].offset
        ours = {
            "NoticeDataLID": (traps.LinkDetails, "lid"),
            "NoticeDataTrap144LID": (traps.LocalChangeDetails, "lid"),
            "NoticeDataTrap144CapMask": (traps.LocalChangeDetails, "capabilityMask"),
        }
        for name, (kind, field) in ours.items():
            place = next(place for place, _ in placesOf(kind, base) if place.name == field)
            self.assertEqual(place[:2], table[name][:2], name)

    def test_tshark(self) -> None:
        """tshark has the fields of all traps where we have them, but for what stands here."""
        kinds = sorted(traps.Trap, key=int)
        known = [
            number for number in kinds if traps.detailsOf(messages.Notice(isGeneric=True, trapNumber=number))
        ]
        notices = [messages.Notice(isGeneric=True, trapNumber=number) for number in known]
        datagrams = [
            managementPacket(Method.TRAP, 7, 2, 0, notice.encode(), IBPath(), 0) for notice in notices
        ]
        for notice, places in zip(notices, tshark(datagrams), strict=True):
            details = traps.detailsOf(notice)
            assert details is not None
            seen = {(place.offset, place.width) for place in places}
            shown = [place for place in places if place.name.startswith("trap.")]
            missing = {
                place.name
                for place, isReserved in placesOf(type(details), (64 + 10) * 8)
                if not isReserved and (place.offset, place.width) not in seen
            }
            if shown:
                self.assertEqual(missing - _NEWER_IN_TRAPS, set(), traps.Trap(notice.trapNumber))

    def test_describe(self) -> None:
        """A notice names its trap and its details."""
        details = traps.LinkDetails(lid=LID(7)).encode()
        notice = messages.Notice(isGeneric=True, trapNumber=128, details=details)
        told = traps.describe(notice)
        self.assertEqual((told["trap"], told["details"]), ("LINK_STATE_CHANGE", {"lid": 7}))
        strange = traps.describe(messages.Notice(trapNumber=128))
        self.assertEqual((strange["trap"], strange["details"]), (None, bytes(54).hex()))
        json.dumps([told, strange])


_NEWER_IN_TRAPS: Final = {"linkSpeedExtEnabledChanged", "capabilityMask2Changed", "capabilityMask2"}
