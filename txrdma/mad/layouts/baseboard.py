"""
Attributes of baseboard management: its key (B_Key), and the messages to modules.

Follows InfiniBand Architecture vol. 1, 16.2.3. The contents of messages are in volume 2: here they are bytes.
"""

from __future__ import annotations

from txrdma.kit.wire import bits, data, wire
from txrdma.mad.layouts.attributes import Attribute, attribute, key


@attribute(0x0010, "BMGet", "BMSet", size=14)
class BKeyInfo(Attribute):
    """The key that protects a baseboard (IBA 16.2.3.2)."""

    bkey: int = key(64)
    bkeyProtectBit: bool = bits(1)
    reserved: int = bits(15)
    bkeyLeasePeriod: int = bits(16)
    bkeyViolations: int = bits(16)


@wire(192)
class _ModuleMessage(Attribute):
    """A message to a module."""

    content: bytes = data(192)


@attribute(0x0020, "BMSend", size=192)
class WriteVPD(_ModuleMessage):
    """Write vital product data (IBA 16.2.3)."""


@attribute(0x0021, "BMSend", size=192)
class ReadVPD(_ModuleMessage):
    """Read vital product data (IBA 16.2.3)."""


@attribute(0x0022, "BMSend", size=192)
class ResetIBML(_ModuleMessage):
    """Reset the IB-ML of a module (IBA 16.2.3)."""


@attribute(0x0023, "BMSend", size=192)
class SetModulePMControl(_ModuleMessage):
    """Set the power management of a module (IBA 16.2.3)."""


@attribute(0x0024, "BMSend", size=192)
class GetModulePMControl(_ModuleMessage):
    """Query the power management of a module (IBA 16.2.3)."""


@attribute(0x0025, "BMSend", size=192)
class SetUnitPMControl(_ModuleMessage):
    """Set the power management of a unit (IBA 16.2.3)."""


@attribute(0x0026, "BMSend", size=192)
class GetUnitPMControl(_ModuleMessage):
    """Query the power management of a unit (IBA 16.2.3)."""


@attribute(0x0027, "BMSend", size=192)
class SetIOCPMControl(_ModuleMessage):
    """Set the power management of an I/O controller (IBA 16.2.3)."""


@attribute(0x0028, "BMSend", size=192)
class GetIOCPMControl(_ModuleMessage):
    """Query the power management of an I/O controller (IBA 16.2.3)."""


@attribute(0x0029, "BMSend", size=192)
class SetModuleState(_ModuleMessage):
    """Set the state of a module (IBA 16.2.3)."""


@attribute(0x002A, "BMSend", size=192)
class SetModuleAttention(_ModuleMessage):
    """Set the attention indicator of a module (IBA 16.2.3)."""


@attribute(0x002B, "BMSend", size=192)
class GetModuleStatus(_ModuleMessage):
    """Query the status of a module (IBA 16.2.3)."""


@attribute(0x002C, "BMSend", size=192)
class IB2IBML(_ModuleMessage):
    """A message for IB-ML (IBA 16.2.3)."""


@attribute(0x002D, "BMSend", size=192)
class IB2CME(_ModuleMessage):
    """A message for the chassis management entity (IBA 16.2.3)."""


@attribute(0x002E, "BMSend", size=192)
class IB2MME(_ModuleMessage):
    """A message for the module management entity (IBA 16.2.3)."""


@attribute(0x002F, "BMSend", size=192)
class OEM(_ModuleMessage):
    """A manufacturer's own message (IBA 16.2.3)."""
