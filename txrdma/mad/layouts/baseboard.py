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
class _Message(Attribute):
    """A message to a module (IBA 16.2.3)."""

    content: bytes = data(192)


def _message(identifier: int, name: str, what: str) -> type[_Message]:
    """Make the attribute of a kind of message."""
    body = {"__doc__": f"{what} (IBA 16.2.3).", "__module__": __name__, "__slots__": ()}
    return attribute(identifier, "BMSend", size=192)(type(name, (_Message,), body))


WriteVPD = _message(0x0020, "WriteVPD", "Write vital product data")
ReadVPD = _message(0x0021, "ReadVPD", "Read vital product data")
ResetIBML = _message(0x0022, "ResetIBML", "Reset the IB-ML of a module")
SetModulePMControl = _message(0x0023, "SetModulePMControl", "Set the power management of a module")
GetModulePMControl = _message(0x0024, "GetModulePMControl", "Query the power management of a module")
SetUnitPMControl = _message(0x0025, "SetUnitPMControl", "Set the power management of a unit")
GetUnitPMControl = _message(0x0026, "GetUnitPMControl", "Query the power management of a unit")
SetIOCPMControl = _message(0x0027, "SetIOCPMControl", "Set the power management of an I/O controller")
GetIOCPMControl = _message(0x0028, "GetIOCPMControl", "Query the power management of an I/O controller")
SetModuleState = _message(0x0029, "SetModuleState", "Set the state of a module")
SetModuleAttention = _message(0x002A, "SetModuleAttention", "Set the attention indicator of a module")
GetModuleStatus = _message(0x002B, "GetModuleStatus", "Query the status of a module")
IB2IBML = _message(0x002C, "IB2IBML", "A message for IB-ML")
IB2CME = _message(0x002D, "IB2CME", "A message for the chassis management entity")
IB2MME = _message(0x002E, "IB2MME", "A message for the module management entity")
OEM = _message(0x002F, "OEM", "A manufacturer's own message")
