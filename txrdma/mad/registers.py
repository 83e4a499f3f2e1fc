"""
Registers of NVIDIA's and Mellanox' devices, which management datagrams of class 0x0A access.

Follows mstflint, which is available under the GPL and a BSD licence: C{register_access_table.adb} describes
the registers, C{mtcr_ib_ofed.c} the datagrams and their statuses. Linux (C{mlx5_ifc.h}) selects ports and
pages in the same way. The attribute modifier is the number of the register. A device announces the attribute
by a bit of its GeneralInfo. Registers beyond 220 octets have further blocks, which no register here needs.
"""

from __future__ import annotations

from typing import Final

from txrdma.iba.path import IBPath
from txrdma.kit.wire import array, bits, data, Layout, wire
from txrdma.mad.layouts.attributes import Attribute, attribute, key, ManagementClass
from txrdma.mad.layouts.messages import MADStatus
from txrdma.mad.layouts.values import text
from txrdma.mad.rpcs import RPCs

REGISTERS: Final = 1 << 20
"""Bit of the capability mask of a device that has the attribute L{AccessRegister}."""

MODULE: Final = 0x5031
"""Register with diagnostic data of a port (PDDR), of which a page describes the cable or optical module."""

SYSTEM: Final = 0x9021
"""Register with the serial number of a device (MSGI)."""

MODULE_PAGE: Final = 3
IB_PORT: Final = 1
"""Numbering of ports in L{ModuleInfo}: that of the InfiniBand specification."""

NO_REGISTER: Final = 0x0014
"""Status of a device that does not have a register."""

REFUSALS: Final = frozenset(
    (
        *(MADStatus.UNSUPPORTED_VERSION, MADStatus.UNSUPPORTED_METHOD),
        *(MADStatus.UNSUPPORTED_METHOD_ATTRIBUTE, NO_REGISTER),
    )
)
"""Statuses of a device that will not answer a query of this class later either."""

_LENGTH: Final = 220


@attribute(0x0051, "VendGet", vendorClass=ManagementClass.VENDOR_0A, size=232)
class AccessRegister(Attribute):
    """
    Contents of a register; the modifier is its number. A Get has the fields that select what is read.

    @ivar block: number of the 220 octets of a longer register.
    """

    vendorKey: int = key(64)
    reserved: int = bits(12)
    block: int = bits(4)
    reserved2: int = bits(16)
    content: bytes = data(_LENGTH)


@wire(216)
class ModuleInfo(Layout):
    """
    Cable or optical module at a port: register L{MODULE} with L{MODULE_PAGE}.

    The device's firmware has taken the values from the module's memory (SFF-8472, SFF-8636, CMIS).

    @ivar length: in metres; of a module with CMIS, two bits of a multiplier and six of a factor.
    @ivar temperature: in 1/256 degrees Celsius, as a signed number; C{highTemperature} is the module's alarm.
    @ivar rxPower: received power of each lane in dBm, as a signed number; C{lowRxPower} is the alarm.
    @ivar maxPower: consumption in quarters of a watt, of modules with CMIS.
    @ivar monitors: mask of the values that the module measures.
    """

    reserved: int = bits(8)
    localPort: int = bits(8)
    portNumbering: int = bits(2)
    reserved2: int = bits(14)
    reserved3: int = bits(24)
    page: int = bits(8)
    technology: int = bits(8)
    reserved4: int = bits(24)
    kind: int = bits(4)
    knownVendor: int = bits(4)
    length: int = bits(8)
    identifier: int = bits(8)
    powerClass: int = bits(8)
    maxPower: int = bits(8)
    reserved5: bytes = data(11)
    vendorName: bytes = data(16, shown=text)
    partNumber: bytes = data(16, shown=text)
    revision: bytes = data(4, shown=text)
    firmwareVersion: int = bits(32)
    serialNumber: bytes = data(16, shown=text)
    temperature: int = bits(16)
    voltage: int = bits(16)
    rxPower: tuple[int, ...] = array(8, bits(16))
    txPower: tuple[int, ...] = array(8, bits(16))
    txBias: tuple[int, ...] = array(8, bits(16))
    highTemperature: int = bits(16)
    lowTemperature: int = bits(16)
    highVoltage: int = bits(16)
    lowVoltage: int = bits(16)
    highRxPower: int = bits(16)
    lowRxPower: int = bits(16)
    highTxPower: int = bits(16)
    lowTxPower: int = bits(16)
    reserved6: bytes = data(14)
    monitors: int = bits(8)
    reserved7: bytes = data(49)


@wire(128)
class SystemInfo(Layout):
    """Serial number, part number and product name of a device: register L{SYSTEM}."""

    serialNumber: bytes = data(24, shown=text)
    reserved: bytes = data(8)
    partNumber: bytes = data(20, shown=text)
    reserved2: int = bits(32)
    revision: bytes = data(4, shown=text)
    reserved3: int = bits(32)
    productName: bytes = data(64, shown=text)


async def readRegister(rpcs: RPCs, path: IBPath, number: int, chosen: bytes = b"") -> bytes:
    """
    Query a register of a device.

    @param chosen: the register with the fields that select what is read.
    @raise MADFailure: the device does not answer, or does not have the register.
    """
    request = AccessRegister(content=chosen.ljust(_LENGTH, b"\0"))
    content: bytes = (await rpcs.VendGet(request, path, number)).content
    return content
