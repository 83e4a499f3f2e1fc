"""Cables of a simulated fabric: what the modules at their ends report."""

from __future__ import annotations

from typing import Final

from txrdma.mad.registers import IB_PORT, MODULE_PAGE, ModuleInfo
from txrdma.mad.vendor import MlxGeneralInfoExtended
from txrdma.sim.fabric.model.nodes import SimulatedPort

GENERAL_INFO: Final = MlxGeneralInfoExtended(
    deviceID=0xD2F0,
    fwPSID=b"MT_0000000001".ljust(16, b"\0"),
    fwYear=0x2026,
    fwMonth=0x01,
    fwDay=0x31,
    extMajor=31,
    extMinor=2014,
    extSubMinor=1682,
)
"""Revisions of a device that has registers, unless other ones are set."""


def moduleAt(port: SimulatedPort) -> ModuleInfo:
    """Return an active cable of four lanes and ten metres; both of its ends have one serial number."""
    ends = [port] if port.peer is None else [port, port.peer]
    first = min(ends, key=lambda end: (end.node.guid.raw, end.number))
    serial = f"MT{int(first.node.guid) & 0xFFFFFFFF:08X}{first.number:03d}".encode()
    return ModuleInfo(
        localPort=port.number,
        portNumbering=IB_PORT,
        page=MODULE_PAGE,
        kind=1,
        length=10,
        powerClass=4,
        vendorName=b"Mellanox".ljust(16),
        partNumber=b"MFS1S00-H010V".ljust(16),
        revision=b"\0\0A4",
        serialNumber=serial.ljust(16),
        temperature=45 << 8,
        rxPower=(0, 0, 0, 0, *[-40 & 0xFFFF] * 4),
        txPower=(1, 1, 1, 1, *[-40 & 0xFFFF] * 4),
        highTemperature=75 << 8,
        highRxPower=5,
        lowRxPower=-10 & 0xFFFF,
        monitors=0b01101,
    )
