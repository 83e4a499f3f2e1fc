"""
Attributes of device management and SNMP tunnelling.

Follows InfiniBand Architecture vol. 1, 16.3.3 and 16.4.3.
"""

from __future__ import annotations

from txrdma.iba.types import GUID
from txrdma.kit.wire import array, bits, data, Layout, wire
from txrdma.mad.layouts.attributes import Attribute, attribute, key
from txrdma.mad.layouts.values import text


@attribute(0x0010, "DevMgtGet", size=132)
class IOUnitInfo(Attribute):
    """An I/O unit (IBA 16.3.3.3). A slot of C{controllerList}: 0 empty, 1 a controller, 15 nonexistent."""

    changeID: int = bits(16)
    maxControllers: int = bits(8)
    reserved: int = bits(6)
    diagDeviceID: bool = bits(1)
    optionROM: bool = bits(1)
    controllerList: tuple[int, ...] = array(256, bits(4))


@attribute(0x0011, "DevMgtGet", size=128)
class IOControllerProfile(Attribute):
    """An I/O controller; the modifier is its slot (IBA 16.3.3.4)."""

    guid: GUID = data(8)
    vendorID: int = key(24)
    reserved: int = bits(8)
    deviceID: int = key(32)
    deviceVersion: int = key(16)
    reserved2: int = bits(16)
    subsystemVendorID: int = key(24)
    reserved3: int = bits(8)
    subsystemID: int = key(32)
    ioClass: int = key(16)
    ioSubclass: int = key(16)
    protocol: int = key(16)
    protocolVersion: int = key(16)
    serviceConnections: int = bits(16)
    initiatorsSupported: int = bits(16)
    sendMessageDepth: int = bits(16)
    reserved4: int = bits(8)
    rdmaReadDepth: int = bits(8)
    sendMessageSize: int = bits(32)
    rdmaTransferSize: int = bits(32)
    controllerOperationsMask: int = key(8)
    controllerServicesMask: int = key(8)
    serviceEntries: int = bits(8)
    reserved5: bytes = data(9)
    idString: bytes = data(64, shown=text)


@wire(48)
class ServiceEntry(Layout):
    """A service of a controller (IBA 16.3.3.5)."""

    serviceName: bytes = data(40, shown=text)
    serviceID: int = key(64)


@attribute(0x0012, "DevMgtGet", size=192)
class ServiceEntries(Attribute):
    """Four services; the modifier is slot << 16, last << 8 and first (IBA 16.3.3.5)."""

    entries: tuple[ServiceEntry, ...] = array(4)


@attribute(0x0020, "DevMgtGet", size=4)
class DiagnosticTimeout(Attribute):
    """Maximum duration of a diagnosis in milliseconds (IBA 16.3.3.6)."""

    maxDiagTime: int = bits(32)


@attribute(0x0021, "DevMgtGet", "DevMgtSet", size=0)
class PrepareToTest(Attribute):
    """Prepare a device for a diagnosis (IBA 16.3.3.7)."""


@attribute(0x0022, "DevMgtSet", size=0)
class TestDeviceOnce(Attribute):
    """Run a diagnosis of a device once (IBA 16.3.3.8)."""


@attribute(0x0023, "DevMgtSet", size=0)
class TestDeviceLoop(Attribute):
    """Run a diagnosis of a device repeatedly (IBA 16.3.3.9)."""


@attribute(0x0024, "DevMgtGet", size=4)
class DiagCode(Attribute):
    """Result of a device's diagnosis (IBA 16.3.3.10)."""

    diagCode: int = key(16)
    reserved: int = bits(16)


@attribute(0x0010, "SNMPGet", "SNMPSet", "SNMPSend", size=64)
class CommunityInfo(Attribute):
    """Name of an SNMP community (IBA 16.4.3.2)."""

    communityName: bytes = data(64, shown=text)


@attribute(0x0011, "SNMPSend", size=192)
class PDUInfo(Attribute):
    """A piece of an SNMP message (IBA 16.4.3.3)."""

    pduData: bytes = data(192)
