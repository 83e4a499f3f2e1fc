"""
Every structure has its fields where others have them: libibmad, tshark, python-rdma, and what else is public.

What none of them knows stands on a list with the reason; a structure that is not there and has no witness
fails.
"""

from __future__ import annotations

import json
from typing import Final

from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.path import IBPath
from txrdma.iba.types import GID, LID
from txrdma.mad.core.frames import managementPacket
from txrdma.mad.layouts import messages, traps
from txrdma.mad.layouts.attributes import ManagementClass, Method
from txrdma.test.support.mad.oracles import libibmad, placesOf, tshark
from txrdma.test.support.mad.pythonrdma import STRUCTURES
from txrdma.test.support.mad.structures import (
    ERRORS,
    LEFT_OUT,
    LIBIBMAD,
    misnamed,
    missing,
    strangers,
    structures,
    UNSEEN,
    witnesses,
)

"""What is not found: libibmad's error (see C{ERRORS}) is the same exchange."""


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
"""Fields that mean the same under another program's name, which shares no word with ours."""


class NoticeTests(SynchronousTestCase):
    def test_tshark(self) -> None:
        known = [
            number
            for number in sorted(traps.Trap, key=int)
            if traps.detailsOf(messages.Notice(isGeneric=True, trapNumber=number))
        ]
        self.assertEqual(known, sorted(traps.Trap, key=int))
        notices = [messages.Notice(isGeneric=True, trapNumber=number) for number in known]
        datagrams = [
            managementPacket(Method.TRAP, 7, 2, 0, notice.encode(), IBPath(), 0) for notice in notices
        ]
        for notice, places in zip(notices, tshark(datagrams), strict=True):
            details = traps.detailsOf(notice)
            assert details is not None
            seen = {(place.offset, place.width) for place in places}
            shown = [place for place in places if place.name.startswith("trap.")]
            lost = {
                place.name
                for place, isReserved in placesOf(type(details), (64 + 10) * 8)
                if not isReserved and (place.offset, place.width) not in seen
            }
            if shown:
                self.assertEqual(lost - _NEWER_IN_TRAPS, set(), traps.Trap(notice.trapNumber))

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
        told = traps.describe(notice)
        self.assertEqual((told["trap"], told["details"]), ("LINK_STATE_CHANGE", {"lid": 7}))
        strange = traps.describe(messages.Notice(trapNumber=128))
        self.assertEqual((strange["trap"], strange["details"]), (None, bytes(54).hex()))
        json.dumps([told, strange])

    def test_otherNames(self) -> None:
        notice = messages.ReportedNotice(isGeneric=True, trapNumber=259)
        names = {number: traps.describe(notice, number)["trap"] for number in (1, 3, 5, 0x21)}
        self.assertEqual(
            names,
            {1: "BAD_PKEY_FROM_SWITCH", 3: "BAD_PKEY_FROM_SWITCH", 5: "BAD_BKEY", 0x21: "UNKNOWN_0x103"},
        )

    def test_issuer(self) -> None:
        gid = GID.fromString("fe80::2")
        report = messages.ReportedNotice(isGeneric=True, trapNumber=64, issuerGID=gid)
        self.assertEqual(report.encode()[:64], messages.Notice(isGeneric=True, trapNumber=64).encode())
        self.assertEqual(report.encode()[64:], gid.raw)
        self.assertEqual(str(traps.describe(report)["issuerGID"]), "fe80::2")

    def test_changes(self) -> None:
        raw = bytes((0, 0, 0, 7, 0, 1)) + (1 << 14).to_bytes(4, "big") + bytes((0, 0x2A, 4, 0)) + bytes(40)
        told = traps.LocalChangeDetails.decode(raw)
        self.assertEqual((told.lid, told.otherLocalChanges, told.capabilityMask), (7, True, 1 << 14))
        self.assertEqual(
            (told.capabilityMask2Change, told.hierarchyInfoChange, told.smPriorityChange), (True, False, True)
        )
        self.assertEqual(
            (told.linkSpeedEnabledChange, told.linkWidthEnabledChange, told.nodeDescriptionChange),
            (False, True, False),
        )
        self.assertEqual(told.capabilityMask2, 0x400)


_NEWER_IN_TRAPS: Final = {
    "capabilityMask2Change",
    "hierarchyInfoChange",
    "smPriorityChange",
    "capabilityMask2",
}


class PlaceTests(SynchronousTestCase):
    slowBecause = "the first of these tests asks tshark about every structure"

    def test_everyField(self) -> None:
        lost = missing(structures(), witnesses(), UNSEEN)
        self.assertEqual(lost, [], "\n".join(lost))

    def test_everyWitness(self) -> None:
        strange = strangers(witnesses(), ERRORS)
        self.assertEqual(strange, [], "\n".join(strange))

    def test_everyFieldOfLibibmad(self) -> None:
        ours = {number for _, ranges in LIBIBMAD.values() for numbers in ranges for number in numbers}
        left = {number: place for number, place in libibmad().items() if number not in ours}
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
        alone = {"CMPath"}  # of a REQ, where it has witnesses
        self.assertEqual(set(UNSEEN) - needed - empty - alone, set())
        self.assertEqual(_SYNONYMS - misnamed(structures(), witnesses()), frozenset())
