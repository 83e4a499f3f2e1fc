"""Management datagrams as readable text."""

from __future__ import annotations

from txrdma.error import WireError
from txrdma.kit.wire import Layout
from txrdma.mad.layouts.attributes import Attribute, attributeOf, lines, ManagementClass
from txrdma.mad.layouts.messages import (
    ClassPortInfo,
    formatOf,
    MADHeader,
    MADStatus,
    Notice,
    RMPPHeader,
    RMPPType,
)


def summary(datagram: bytes) -> str:
    """Datagram on one line: C{"SUBN_DIRECTED GET_RESP NodeInfo modifier 0x0 TID 0x12"}, and segment."""
    header = MADHeader.decode(datagram)
    kind = attributeOf(header.managementClass, header.attributeID)
    what = f"attribute {header.attributeID:#06x}" if kind is None else kind.__name__
    status = header.status
    if header.managementClass is ManagementClass.SUBN_DIRECTED:
        status &= 0x7FFF
    output = (
        f"{header.managementClass.name} {header.method.name} {what} modifier {header.attributeModifier:#x}"
    )
    output += f" TID {header.transactionID:#x}"
    if formatOf(header.managementClass).hasRMPP and len(datagram) >= MADHeader.size + RMPPHeader.size:
        output += _part(RMPPHeader.decode(datagram, MADHeader.size))
    if status:
        output += f" status {status:#06x} ({MADStatus(status).words(header.managementClass)})"
    return output


def _part(rmpp: RMPPHeader) -> str:
    """Return the RMPP header as text: segment number, ACK and window, or the reason for the end."""
    if not rmpp.active or rmpp.type is RMPPType.NONE:
        return ""
    if rmpp.type is RMPPType.DATA:
        return f" part {rmpp.data1}{' (last)' if rmpp.last else ''}"
    if rmpp.type is RMPPType.ACK:
        return f" ACK {rmpp.data1}, up to {rmpp.data2} may come"
    return f" {rmpp.type.name} ({rmpp.status.name})"


def dumped(datagram: bytes, level: int = 2) -> str:
    """
    Datagram as text of one or more lines.

    @param level: 1 is its summary, 2 adds the fields of its frame and of its attribute, 3 its bytes.
    """
    try:
        output = [summary(datagram)]
        if level >= 2:
            output += _fields(datagram)
    except WireError as error:
        output = [f"{len(datagram)} bytes: {error}"]
        level = 3
    if level >= 3:
        output += [f"{at:#06x}  {datagram[at : at + 16].hex(' ', 4)}" for at in range(0, len(datagram), 16)]
    return "\n".join(output)


def payloadOf(datagram: bytes) -> Attribute | None:
    """Attribute of a datagram, None for an unknown one; raise L{WireError} if the datagram is too short."""
    header = MADHeader.decode(datagram)
    kind = attributeOf(header.managementClass, header.attributeID)
    if kind is None:
        return None
    offset = kind.dataOffset or formatOf(header.managementClass).dataOffset
    whole = datagram if len(datagram) >= offset + kind.size else datagram.ljust(offset + kind.size, b"\0")
    return kind.decode(whole, offset)


def _fields(datagram: bytes) -> list[str]:
    header = MADHeader.decode(datagram)
    frame = formatOf(header.managementClass).decode(datagram.ljust(256, b"\0"))
    shown = [f"{name} {text}" for name, text in lines(frame) if name != "payload"]
    payload: Layout | None = payloadOf(datagram)
    if payload is None:
        return shown
    shown += [f"{type(payload).__name__}.{name} {text}" for name, text in lines(payload)]
    if isinstance(payload, ClassPortInfo):
        from txrdma.mad.layouts.capabilities import (
            capabilitiesOf,  # what programs start with does not need it
        )

        can = capabilitiesOf(payload, header.managementClass)
        shown.append(f"ClassPortInfo can: {', '.join(can) or 'nothing in particular'}")
    if isinstance(payload, Notice):
        from txrdma.mad.layouts.traps import describe, detailsOf  # nor this

        details = detailsOf(payload, header.managementClass)
        shown.append(f"trap {describe(payload, header.managementClass)['trap'] or 'of a vendor'}")
        shown += (
            [f"{type(details).__name__}.{name} {text}" for name, text in lines(details)] if details else []
        )
    return shown
