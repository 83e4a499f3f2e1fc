"""
What ports say of their speeds, in all places where they do.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from txrdma.fabric.linkspeeds import (
    activeSpeed,
    enabledSpeeds,
    fastest,
    has,
    LANE_GIGABITS,
    LaneSpeed,
    mayHaveFDR10,
    supportedSpeeds,
    wantsAsking,
)
from txrdma.iba.verbs import PhysicalState
from txrdma.mad.layouts.smp import ExtendedPortInfo, NodeInfo, PortInfo
from txrdma.mad.layouts.values import EXTENDED_GIGABITS, GIGABITS, PortCapability

EXTENDED = PortCapability.EXTENDED_SPEEDS
BOTH = EXTENDED | PortCapability.CAPABILITY_MASK2
XDR = 0x0800
"""CapabilityMask2 of who can say XDR."""


def said(**fields: Any) -> bytes:
    return PortInfo(**fields).encode()


class SpeedTests(SynchronousTestCase):
    def test_active(self) -> None:
        able = said(capabilityMask=BOTH, capabilityMask2=XDR)
        for code, name in ((1, "SDR"), (2, "DDR"), (4, "QDR")):
            self.assertEqual(activeSpeed(said(linkSpeedActive=code), able), LaneSpeed[name])
        for code, name in ((1, "FDR"), (2, "EDR"), (4, "HDR"), (8, "NDR")):
            info = said(linkSpeedActive=4, linkSpeedExtActive=code)
            self.assertEqual(activeSpeed(info, able), LaneSpeed[name])
            self.assertEqual(activeSpeed(info, said()), LaneSpeed.QDR)
        info = said(linkSpeedActive=4, linkSpeedExtActive=8, linkSpeedExtActive2=1)
        self.assertEqual(activeSpeed(info, able), LaneSpeed.XDR)
        self.assertEqual(activeSpeed(info, said(capabilityMask=BOTH)), LaneSpeed.NDR)

    def test_sets(self) -> None:
        end = said(capabilityMask=BOTH, capabilityMask2=XDR)
        info = said(
            linkSpeedSupported=7,
            linkSpeedEnabled=3,
            linkSpeedExtSupported=15,
            linkSpeedExtEnabled=3,
            linkSpeedExtSupported2=1,
            linkSpeedExtEnabled2=1,
        )
        names = ["SDR", "DDR", "QDR", "FDR", "EDR", "HDR", "NDR", "XDR"]
        self.assertEqual(has(supportedSpeeds(info, end)), names)
        self.assertEqual(has(enabledSpeeds(info, end)), ["SDR", "DDR", "FDR", "EDR", "XDR"])
        self.assertEqual(fastest(enabledSpeeds(info, end)), LaneSpeed.XDR)
        self.assertEqual(has(enabledSpeeds(said(linkSpeedEnabled=7, linkSpeedExtEnabled=30), end)), names[:3])
        self.assertEqual(fastest(0), 0)

    def test_fdr10(self) -> None:
        vendors = ExtendedPortInfo(linkSpeedSupported=1, linkSpeedEnabled=1, linkSpeedActive=1).encode()
        info = said(linkSpeedActive=4, linkSpeedSupported=7, linkSpeedEnabled=7)
        self.assertEqual(activeSpeed(info, info, vendors), LaneSpeed.FDR10)
        self.assertEqual(activeSpeed(said(linkSpeedActive=2), info, vendors), LaneSpeed.DDR)
        self.assertEqual(fastest(supportedSpeeds(info, info, vendors)), LaneSpeed.FDR10)
        self.assertEqual(fastest(enabledSpeeds(info, info, vendors)), LaneSpeed.FDR10)
        self.assertEqual(fastest(enabledSpeeds(info, info)), LaneSpeed.QDR)

    def test_asking(self) -> None:
        up = {"portPhysicalState": PhysicalState.LINK_UP, "linkSpeedActive": 4}
        end = said(capabilityMask=EXTENDED)
        self.assertTrue(wantsAsking(said(**up), b""))
        self.assertTrue(wantsAsking(said(**up, linkSpeedExtActive=1), said()))
        self.assertFalse(wantsAsking(said(**up, linkSpeedExtActive=1), b""))
        self.assertFalse(wantsAsking(said(**up, linkSpeedExtActive=1), end))
        self.assertFalse(wantsAsking(said(linkSpeedActive=4), end))
        self.assertFalse(wantsAsking(said(**{**up, "linkSpeedActive": 2}), end))
        for vendor, device, expected in (
            (0x2C9, 0xC738, True),  # SwitchX
            (0x2C9, 0x1003, True),  # ConnectX-3
            (0x2C9, 0xBD36, False),  # InfiniScale IV, which knows no FDR10
            (0x2C9, 0x673C, False),  # ConnectX-2
            (0x119F, 0x1B02, True),
            (0x2C9, 0x1B02, False),
        ):
            self.assertEqual(mayHaveFDR10(NodeInfo(vendorID=vendor, deviceID=device)), expected, hex(device))

    def test_rates(self) -> None:
        for known in (GIGABITS, EXTENDED_GIGABITS):
            for speed, rate in known.items():
                self.assertEqual(LANE_GIGABITS[LaneSpeed[str(speed.name)]], rate)
        self.assertEqual(list(LANE_GIGABITS.values()), sorted(LANE_GIGABITS.values()))
