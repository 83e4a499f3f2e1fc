"""
Base class of all attributes of management datagrams: their IDs, calls and text.

Follows InfiniBand Architecture vol. 1, 13.4 (management datagrams).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

from typing_extensions import dataclass_transform

from txrdma.iba.types import GUID
from txrdma.kit.wire import bits, Code, Layout, wire
from txrdma.kit.wirefield import Field
from txrdma.mad.layouts.values import text

T = TypeVar("T", bound="Attribute")

_WIDTH: Final = 33
"""Column of the values in the text of an attribute: that of infiniband-diags."""


class ManagementClass(Code):
    """Management class of a datagram (IBA 13.4.4, table 110)."""

    SUBN_LID = 0x01
    SUBN_DIRECTED = 0x81
    SUBN_ADM = 0x03
    PERFORMANCE = 0x04
    BM = 0x05
    DEV_MGT = 0x06
    COMM_MGT = 0x07
    SNMP = 0x08
    VENDOR_09 = 0x09
    VENDOR_0A = 0x0A
    DEV_ADM = 0x10
    BOOT_MGT = 0x11
    BIS = 0x12
    CONG_MGT = 0x21
    VENDOR_OUI_30 = 0x30
    VENDOR_OPENIB_PING = 0x32
    VENDOR_OPENIB_SYSSTAT = 0x33


class Method(Code):
    """Method of a datagram: request or answer (IBA 13.4.5, table 112)."""

    GET = 0x01
    SET = 0x02
    SEND = 0x03
    TRAP = 0x05
    REPORT = 0x06
    TRAP_REPRESS = 0x07
    GET_TABLE = 0x12
    GET_TRACE_TABLE = 0x13
    GET_MULTI = 0x14
    DELETE = 0x15
    GET_RESP = 0x81
    REPORT_RESP = 0x86
    GET_TABLE_RESP = 0x92
    GET_MULTI_RESP = 0x94
    DELETE_RESP = 0x95


@dataclass(frozen=True, slots=True)
class RPC:
    """
    Remote procedure call of the specification: a method of a management class.

    @ivar answer: the method of its answer; None for a call without an answer.
    """

    name: str
    managementClass: ManagementClass
    method: Method
    answer: Method | None


ANSWERS: Final = {
    Method.GET: Method.GET_RESP,
    Method.SET: Method.GET_RESP,
    Method.TRAP: Method.TRAP_REPRESS,
    Method.REPORT: Method.REPORT_RESP,
    Method.GET_TABLE: Method.GET_TABLE_RESP,
    Method.GET_TRACE_TABLE: Method.GET_TABLE_RESP,
    Method.GET_MULTI: Method.GET_MULTI_RESP,
    Method.DELETE: Method.DELETE_RESP,
}
"""Method of the answer, by that of the request (IBA 13.4.5)."""

_PREFIXES: Final = {
    "Subn": ManagementClass.SUBN_LID,
    "SubnAdm": ManagementClass.SUBN_ADM,
    "Performance": ManagementClass.PERFORMANCE,
    "BM": ManagementClass.BM,
    "DevMgt": ManagementClass.DEV_MGT,
    "CommMgt": ManagementClass.COMM_MGT,
    "SNMP": ManagementClass.SNMP,
    "Vend": ManagementClass.VENDOR_09,
    "DevAdm": ManagementClass.DEV_ADM,
    "BIS": ManagementClass.BIS,
    "CongMgt": ManagementClass.CONG_MGT,
}

_VERBS: Final = {
    "Get": Method.GET,
    "Set": Method.SET,
    "Send": Method.SEND,
    "Trap": Method.TRAP,
    "TrapRepress": Method.TRAP_REPRESS,
    "Report": Method.REPORT,
    "GetTable": Method.GET_TABLE,
    "GetTraceTable": Method.GET_TRACE_TABLE,
    "GetMulti": Method.GET_MULTI,
    "Delete": Method.DELETE,
}

_METHODS_OF: Final = {
    "Subn": "Get Set Trap TrapRepress",
    "SubnAdm": "Get Set Report Trap TrapRepress GetTable GetTraceTable GetMulti Delete",
    "Performance": "Get Set",
    "BM": "Get Set Send Trap TrapRepress",
    "DevMgt": "Get Set Trap TrapRepress",
    "CommMgt": "Get Set Send",
    "SNMP": "Get Set Send",
    "Vend": "Get Set Send Trap TrapRepress",
    "DevAdm": "Get Set",
    "BIS": "Get Set Report",
    "CongMgt": "Get Set Trap TrapRepress",
}

RPCS: Final[dict[str, RPC]] = {
    prefix + verb: RPC(prefix + verb, _PREFIXES[prefix], _VERBS[verb], ANSWERS.get(_VERBS[verb]))
    for prefix, verbs in _METHODS_OF.items()
    for verb in verbs.split()
}
"""All remote procedure calls by name: C{"SubnGet"}, C{"SubnAdmGetTable"}..."""


def key(width: int) -> Any:
    """A field that is shown in hexadecimal: a key, an identifier, a mask without names."""
    return bits(width, shown=lambda number: f"{number:#0{-(-width // 4) + 2}x}")


def mask(width: int, names: type[enum.IntFlag]) -> Any:
    """A field of bits with names."""

    def shown(number: int) -> str:
        decoded = ", ".join(setBits(number, names))
        return f"{number:#0{-(-width // 4) + 2}x}" + (f" ({decoded})" if decoded else "")

    return bits(width, shown=shown, flags=names)


def setBits(number: int, names: type[enum.IntFlag]) -> list[str]:
    """The names of the bits that are set."""
    return [flag.name for flag in names if number & flag and flag.name is not None]


class Attribute(Layout):
    """
    The payload of a management datagram.

    @cvar attributeID: its number in the header.
    @cvar rpcs: names of the calls that carry it.
    @cvar vendorClass: management class of a vendor's attribute; C{oui} is the vendor's OUI.
    @cvar dataOffset: its offset in a datagram, if that is not the offset of its class.
    """

    __slots__ = ()

    attributeID: ClassVar[int]
    rpcs: ClassVar[frozenset[str]] = frozenset()
    vendorClass: ClassVar[ManagementClass | None] = None
    oui: ClassVar[int] = 0
    dataOffset: ClassVar[int | None] = None

    def toDict(self) -> dict[str, object]:
        """Return all fields that are not reserved, for JSON; enumerations by name, text as strings."""
        return _fieldsOf(self)

    def __str__(self) -> str:
        return "\n".join(f"{name}:{'.' * max(1, _WIDTH - 1 - len(name))}{text}" for name, text in lines(self))


def carried(verbs: str, but: str = "") -> Iterator[str]:
    """
    The names of the calls of all classes with these verbs.

    @param verbs: C{"Get Set"}; C{but} names classes to exclude: C{"Subn SubnAdm"}.
    """
    for prefix, suffixes in _METHODS_OF.items():
        if prefix not in but.split():
            yield from (prefix + verb for verb in suffixes.split() if verb in verbs.split())


@dataclass_transform(kw_only_default=True, frozen_default=True)
def attribute(
    identifier: int, *rpcs: str, size: int, vendorClass: ManagementClass | None = None, oui: int = 0
) -> Callable[[type[T]], type[T]]:
    """
    Return a decorator that makes a class the layout of an attribute with this ID and C{size} bytes.

    @param rpcs: the calls that carry it.
    @param vendorClass: the vendors' class for C{Vend...}; C{oui} is the vendor's OUI, in the second range of
        these classes.
    @raise KeyError: the specification has no such call.
    """

    def decorate(cls: type[T]) -> type[T]:
        made = wire(size)(cls)
        made.attributeID = identifier
        made.rpcs = frozenset(RPCS[name].name for name in rpcs)
        made.vendorClass, made.oui = vendorClass, oui
        for managementClass in {vendorClass or RPCS[name].managementClass for name in rpcs}:
            _registered.setdefault((managementClass, identifier), made)
        return made

    return decorate


_registered: dict[tuple[int, int], type[Attribute]] = {}


def attributeOf(managementClass: int, identifier: int) -> type[Attribute] | None:
    """Attribute type of a management class and an attribute ID; None for an unknown one."""
    if managementClass == ManagementClass.SUBN_DIRECTED:
        managementClass = ManagementClass.SUBN_LID
    return _registered.get((managementClass, identifier))


def allAttributes() -> dict[tuple[int, int], type[Attribute]]:
    """Every attribute that is declared, by class and number."""
    return dict(_registered)


def plain(value: object) -> object:
    """Convert a value for JSON."""
    if isinstance(value, Layout):
        return _fieldsOf(value)
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, tuple):
        return [plain(one) for one in value]
    if isinstance(value, bytes):
        return value.hex()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)


def _fieldsOf(layout: Layout) -> dict[str, object]:
    values = ((field, getattr(layout, field.name)) for field in layout.fields if not field.reserved)
    return {
        field.name: _plainText(value) if field.shown is text else plain(_named(field, value))
        for field, value in values
    }


def _named(field: Field, value: Any) -> Any:
    """Number of a code, as a member of its enumeration."""
    if type(value) is int and issubclass(field.type, Code):
        return field.type(value)
    return value


def _plainText(raw: bytes) -> object:
    """Return a text, or its bytes if the text would be incomplete."""
    decoded = text(raw)
    return decoded if decoded.encode().ljust(len(raw), b"\0") == raw else {"hex": raw.hex()}


def lines(layout: Layout, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield name and text of each field that is not reserved; names of inner layouts' fields have dots."""
    for field in layout.fields:
        if field.reserved:
            continue
        value: Any = getattr(layout, field.name)
        if field.count is None:
            yield from _linesOf(prefix + field.name, field, value)
        else:
            for index, one in enumerate(value):
                yield from _linesOf(f"{prefix}{field.name}[{index}]", field, one)


def _linesOf(name: str, field: Field, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Layout):
        yield from lines(value, name + ".")
    else:
        yield name, spoken(value, field)


def spoken(value: Any, field: Field) -> str:
    """Return a field's value as readable text: names beside numbers, keys in hexadecimal."""
    if field.shown is not None:
        return field.shown(value)
    value = _named(field, value)
    if isinstance(value, enum.Enum):
        return f"{value.name} ({value.value})"
    if isinstance(value, GUID):
        return f"0x{value.raw.hex()}"
    if isinstance(value, bool):
        return str(int(value))
    return value.hex() if isinstance(value, bytes) else str(value)
