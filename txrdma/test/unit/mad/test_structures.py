"""
Every structure has the layout of other programs: libibmad, tshark, python-rdma, and published definitions.

Structures without such a reference are listed with the reason; the tests fail for any other one.
"""

from __future__ import annotations

import re
from importlib import import_module
from importlib.resources import files
from typing import Final, get_type_hints

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import InvalidRequest
from txrdma.kit.wire import Layout
from txrdma.mad.layouts import sa
from txrdma.mad.layouts.attributes import Attribute, attributeOf, Method, RPCS
from txrdma.mad.layouts.messages import formatOf, MADHeader
from txrdma.mad.layouts.sa import _PlainRecord, componentsOf, Query, Record
from txrdma.test.support import CHECKOUT
from txrdma.test.support.mad.oracles import componentBits, pythonRDMA
from txrdma.test.support.mad.pairs import TO_2, WiredTestCase
from txrdma.test.support.mad.pythonrdma import LATER, STRUCTURES
from txrdma.test.support.mad.structures import attributes, structures


class PythonRDMATests(SynchronousTestCase):
    def test_everyStructure(self) -> None:
        self.assertEqual(STRUCTURES.keys(), pythonRDMA().keys())
        vendors = {name for name in STRUCTURES if name.startswith(("Mlx", "OFA"))}
        details = {name for name in STRUCTURES if name.startswith("MADNotice")}
        self.assertEqual(len(STRUCTURES.keys() - vendors - details), 107)
        ours = {kind.__name__ for kind in structures()}
        self.assertEqual(set(STRUCTURES.values()) - ours, set())

    def test_lengths(self) -> None:
        kinds = {kind.__name__: kind for kind in structures()}
        others = {
            name
            for name, (length, _) in pythonRDMA().items()
            if length != kinds[STRUCTURES[name]].size + LATER.get(name, 0) // 8
        }
        self.assertEqual(others, set(_OTHER_LENGTHS))

    def test_page(self) -> None:
        """The page for users of python-rdma has the module of each structure."""
        page = (CHECKOUT / "docs" / "from-python-rdma.md").read_text()
        for module, ours in re.findall(r"^\| `\w+` \| `([\w.]+)\.(\w+)` \|$", page, re.M):
            kind = getattr(import_module(module), ours)
            self.assertTrue(issubclass(kind, Layout))
            self.assertEqual(kind.__module__, module)


_OTHER_LENGTHS: Final = {
    "HdrFlowControl": "ours has the CRC",
    "SMPSMInfo": "it filled the last word",
    "SASMInfoRecord": "it filled the last word",
    "SALinkRecord": "it filled the last word",
    "SATraceRecord": "it filled the last word",
    "SAInformInfoRecord": "it filled it up to where the next of a table begins",
    "SAMultiPathRecord": "it counted the first of the GIDs that follow",
    "PMPortSamplesCtl": "it filled the datagram",
    "PMPortCountersExt": "it is from before errors were counted in 64 bits",
    "OFASysStatPing": "it sent a number for a text",
}


class ComponentTests(SynchronousTestCase):
    def test_openSM(self) -> None:
        strange = []
        for name, reference in componentBits().items():
            masks, _ = componentsOf(getattr(sa, name))
            byBit = {
                bit: component for component, mask in masks.items() for bit in range(64) if mask >> bit & 1
            }
            for bit, component in reference:
                ours = byBit.get(bit, "reserved")
                if not (componentAlike(ours, component) or (ours, component) in _OPENSM_NAMES):
                    strange.append(f"{name} bit {bit}: {ours}, {component}")
        self.assertEqual(strange, [], "\n".join(strange))

    def test_everyRecord(self) -> None:
        records = {kind.__name__ for kind in attributes() if issubclass(kind, Record)}
        self.assertEqual(records - componentBits().keys(), set(_NOT_IN_OPENSM))

    def test_firstBits(self) -> None:
        self.assertEqual(componentsOf(sa.TraceRecord)[0]["exitPort"], 1 << 9)
        self.assertEqual(componentsOf(sa.RandomForwardingTableRecord)[0], {"lid": 1, "blockNum": 2})
        self.assertEqual(componentsOf(sa.ServiceAssociationRecord)[0], {"serviceKey": 1, "serviceName": 2})

    def test_types(self) -> None:
        wrong = []
        for kind in (each for each in attributes() if issubclass(each, Record)):
            masks, owners = componentsOf(kind)
            if issubclass(kind, _PlainRecord):
                wrong += [f"{kind.__name__}.{name}" for name, owner in owners.items() if owner is not None]
                continue
            types = get_type_hints(vars(kind)["query"].components)
            fields = {field.name: field.type for field in kind.fields}
            for name in masks.keys() | types.keys():
                inner = owners[name]
                owner = kind if inner is None else fields[inner]
                if get_type_hints(owner).get(name) != types.get(name, "no component"):
                    wrong.append(f"{kind.__name__}.{name}: {types.get(name)}")
        self.assertEqual(wrong, [])

    def test_unknown(self) -> None:
        error = self.assertRaises(TypeError, sa.LinkRecord.query, colour=3)
        self.assertIn("fromLID, fromPort, toPort, toLID", str(error))


_NOT_IN_OPENSM: Final = {
    "RandomForwardingTableRecord": "OpenSM serves none",
    "TraceRecord": "OpenSM serves none",
    "ServiceAssociationRecord": "OpenSM serves none",
    "LinkSpeedWidthPairsTableRecord": "OpenSM serves none",
    "PortInfoExtendedRecord": "OpenSM matches no components of it",
}

_OPENSM_NAMES: Final = frozenset(
    pair
    for line in """
    guids=GID0 guids=GID1 guids=GID2 guids=GID3 guids=GID4 guids=GID5 guids=GID6 guids=GID7 mgid=GID
    systemImageGUID=SYSIMAGEGUID localPortNum=PORTNUM nodeString=NODEDESC trapNumber=DEVICEID
    producerType=VENDID packetLifeTimeSelector=LIFE_SEL packetLifeTime=LIFE endPortLID=LID lid=BASELID
    serviceIDUpper=SERVICEID_MSB serviceIDLower=SERVICEID_LSB serviceID=SERVICEID_MSB serviceID=SERVICEID_LSB
    masterSMLID=SMLID multicastPKeyTrapSuppressionEnabled=RESV3
    """.splitlines()
    for pair in (tuple(each.split("=")) for each in line.split())
)


def componentAlike(ours: str, reference: str) -> bool:
    one, other = ours.lower(), re.sub(r"^sdata(\d+)_\d+$", r"data\1", reference.lower()).replace("_", "")
    if one == "reserved":
        return other.startswith("res")
    letters = iter(one)
    return other[0] == one[0] and all(letter in letters for letter in other)


# Attributes that python-rdma does not have, with the numbers and names of rdma-core: umad_sm.h and umad_sa.h
# of libibumad, mad.h of libibmad.
_NUMBERS: Final = {
    "LinkSpeedWidthPairsTable": (0x01, 0x001C),
    "VendorMADsTable": (0x01, 0x001D),
    "HierarchyInfo": (0x01, 0x001E),
    "CableInfo": (0x01, 0x0032),
    "PortInfoExtended": (0x01, 0x0033),
    "ExtendedPortInfo": (0x01, 0xFF90),
    "LinkSpeedWidthPairsTableRecord": (0x03, 0x0019),
    "PortInfoExtendedRecord": (0x03, 0x003E),
    "PortExtendedSpeedsCounters": (0x04, 0x001F),
    "PortRcvConCtrl": (0x04, 0x0031),
    "PortSLRcvFECN": (0x04, 0x0032),
    "PortSLRcvBECN": (0x04, 0x0033),
    "PortXmitConCtrl": (0x04, 0x0034),
    "PortVLXmitTimeCong": (0x04, 0x0035),
    "CongestionInfo": (0x21, 0x0011),
    "CongestionKeyInfo": (0x21, 0x0012),
    "SwitchCongestionLog": (0x21, 0x0013),
    "SwitchCongestionSetting": (0x21, 0x0014),
    "SwitchPortCongestionSetting": (0x21, 0x0015),
    "CACongestionSetting": (0x21, 0x0016),
    "CongestionControlTable": (0x21, 0x0017),
    "TimeStamp": (0x21, 0x0018),
    "BKeyInfo": (0x05, 0x0010),
    "WriteVPD": (0x05, 0x0020),
    "ReadVPD": (0x05, 0x0021),
    "ResetIBML": (0x05, 0x0022),
    "SetModulePMControl": (0x05, 0x0023),
    "GetModulePMControl": (0x05, 0x0024),
    "SetUnitPMControl": (0x05, 0x0025),
    "GetUnitPMControl": (0x05, 0x0026),
    "SetIOCPMControl": (0x05, 0x0027),
    "GetIOCPMControl": (0x05, 0x0028),
    "SetModuleState": (0x05, 0x0029),
    "SetModuleAttention": (0x05, 0x002A),
    "GetModuleStatus": (0x05, 0x002B),
    "IB2IBML": (0x05, 0x002C),
    "IB2CME": (0x05, 0x002D),
    "IB2MME": (0x05, 0x002E),
    "OEM": (0x05, 0x002F),
    "ReportedNotice": (0x03, 0x0002),
    "OpenIBPing": (0x32, 0x0000),
}

_OTHER_FORMS: Final = {"PortExtendedSpeedsCountersRSFEC", "CACongestionLog", "MlxGeneralInfoExtended"}
"""Structures that share the number of another one."""

_FEWER: Final = {
    "SMPVendorDiag": set[str](),
    "PMPortSamplesResExt": {"PerformanceSet"},  # a result cannot be set
}

_MORE: Final = {
    "ClassPortInfo": "all classes but subnet management have it, with Get and Set (13.4.8.1)",
    "InformInfo": "all classes may forward events (13.4.8.3)",
    "Notice": "Get and Set of the queue of notices (13.4.8.2); reports without the issuer's GID",
    "NodeDescription": "Set came with IsSetNodeDescriptionSupported",
    "CommunityInfo": "Get and Set (16.4.3)",
}
"""Structures with more fields than in python-rdma."""


def reference() -> dict[str, tuple[int, set[str]]]:
    text = files("txrdma.test").joinpath("vectors/python-rdma-methods.txt").read_text()
    rows = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return {name: (int(number, 0), set(calls)) for name, number, *calls in rows}


class TableTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.kinds = {kind.__name__: kind for kind in attributes()}

    def test_pythonRDMA(self) -> None:
        for name, (number, calls) in reference().items():
            kind = self.kinds[STRUCTURES[name]]
            if name == "OFASysStatCPUInfo":
                number = 0x12  # python-rdma's 0x112 is an error: ibsysstat requests 0x12
            self.assertEqual(kind.attributeID, number, name)
            self.assertEqual(calls - _FEWER.get(name, set()) - kind.rpcs, set(), name)
            if kind.__name__ not in _MORE:
                self.assertEqual(kind.rpcs - calls, set(), name)

    def test_numbers(self) -> None:
        had = {STRUCTURES[name] for name in reference()}
        self.assertEqual(self.kinds.keys() - had - _OTHER_FORMS, _NUMBERS.keys())
        for name, (managementClass, number) in _NUMBERS.items():
            self.assertIs(attributeOf(managementClass, number), self.kinds[name])
        for name in _OTHER_FORMS:
            self.assertTrue(self.kinds[name].rpcs)

    def test_everyCall(self) -> None:
        carried = {rpc for kind in attributes() for rpc in kind.rpcs}
        self.assertEqual(RPCS.keys() - carried, {"VendSend"})

    def test_common(self) -> None:
        classPortInfo, notice = self.kinds["ClassPortInfo"], self.kinds["ReportedNotice"]
        for rpc in RPCS.values():
            if rpc.method is Method.GET and not rpc.name == "SubnGet":
                self.assertIn(rpc.name, classPortInfo.rpcs)
            if rpc.method in (Method.TRAP, Method.TRAP_REPRESS, Method.REPORT):
                self.assertIn(
                    rpc.name, (notice if not rpc.name.startswith("SubnTrap") else self.kinds["Notice"]).rpcs
                )


class SectionTests(SynchronousTestCase):
    def test_sections(self) -> None:
        """Each structure or its module names the sections of the specification that it follows."""
        silent = [
            kind.__name__
            for kind in structures()
            if "(IBA" not in (kind.__doc__ or "")
            and "Follows" not in (import_module(kind.__module__).__doc__ or "")
        ]
        self.assertEqual(silent, [])


class CheckTests(WiredTestCase):
    options = {"timeoutSeconds": 0.5}

    def test_everyCombination(self) -> None:
        """Of all combinations of calls and attributes, valid ones are sent and others are refused."""
        sent = refused = 0
        for name, rpc in RPCS.items():
            for kind in attributes():
                del self.wire.sent[:]
                call: Deferred[object] = getattr(self.agent, name)(kind, TO_2)
                if name not in kind.rpcs:
                    error = self.failureResultOf(call, InvalidRequest).value
                    self.assertIn(kind.__name__, str(error))
                    self.assertEqual(self.wire.sent, [])
                    refused += 1
                    continue
                ((_, datagram),) = self.wire.sent
                header = MADHeader.decode(datagram)
                self.assertEqual(len(datagram), 256)
                self.assertEqual((header.method, header.attributeID), (rpc.method, kind.attributeID))
                self.assertEqual(header.managementClass, kind.vendorClass or rpc.managementClass)
                self.assertEqual(header.classVersion, formatOf(header.managementClass).classVersion)
                call.addErrback(lambda failure: None)
                call.cancel()
                sent += 1
        self.assertGreater(sent, 200)
        self.assertGreater(refused, 3000)

    def test_instances(self) -> None:
        for kind in attributes():
            name = min(kind.rpcs)
            del self.wire.sent[:]
            content: bytes = bytes(range(1, 256))[: kind.size].ljust(kind.size, b"\7")
            payload: Attribute | Query[Record] = kind.decode(content)
            call: Deferred[object] = getattr(self.agent, name)(payload, TO_2)
            ((_, datagram),) = self.wire.sent
            offset: int = kind.dataOffset or formatOf(datagram[1]).dataOffset
            self.assertEqual(datagram[offset : offset + kind.size], content, kind)
            call.addErrback(lambda failure: None)
            call.cancel()
