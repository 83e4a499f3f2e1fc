"""
Every structure has its fields where others have them: libibmad, tshark, python-rdma, and what else is public.

What none of them knows stands on a list with the reason; a structure that is not there and has no witness
fails.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Final, get_type_hints

from twisted.trial.unittest import SkipTest, SynchronousTestCase

import txrdma
from txrdma.kit.wire import Layout
from txrdma.mad.layouts import sa
from txrdma.mad.layouts.sa import componentsOf, Record
from txrdma.test.support.mad.oracles import componentBits, pythonRDMA
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
        page = Path(txrdma.__file__).parents[1] / "docs" / "from-python-rdma.md"
        if not page.exists():
            raise SkipTest("the documentation is not installed with the package")
        rows = re.findall(r"^\| `(\w+)` \| `([\w.]+)\.(\w+)` \|$", page.read_text(), re.M)
        self.assertEqual({name: ours for name, _, ours in rows}, STRUCTURES)
        for _, module, ours in rows:
            kind = getattr(importlib.import_module(module), ours)
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
        for name, theirs in componentBits().items():
            masks, _ = componentsOf(getattr(sa, name))
            byBit = {
                bit: component for component, mask in masks.items() for bit in range(64) if mask >> bit & 1
            }
            for bit, component in theirs:
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
            types = get_type_hints(vars(kind)["query"].components)
            masks, owners = componentsOf(kind)
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


def componentAlike(ours: str, theirs: str) -> bool:
    one, other = ours.lower(), re.sub(r"^sdata(\d+)_\d+$", r"data\1", theirs.lower()).replace("_", "")
    if one == "reserved":
        return other.startswith("res")
    letters = iter(one)
    return other[0] == one[0] and all(letter in letters for letter in other)
