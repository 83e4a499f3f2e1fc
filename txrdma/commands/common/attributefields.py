"""Looks up attributes and fields by name, and parses values of fields."""

from __future__ import annotations

import enum
import functools
import operator
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from txrdma.error import InvalidRequest, WireError
from txrdma.kit.wire import data, Layout, wire
from txrdma.kit.wirefield import Field
from txrdma.mad.layouts.attributes import Attribute, ManagementClass, RPC, RPCS
from txrdma.mad.layouts.messages import formatOf
from txrdma.mad.layouts.sa import componentsOf, Query, Record

Pair = tuple[str, str]
K = TypeVar("K", bound="NamedAttribute")

_SMP_BYTES: Final = 64
"""Bytes of a subnet management attribute (IBA 14.2.1)."""

_RAW: Final = "Attribute_"
_INDEXED: Final = re.compile(r"(.+)\[(\d+)\]")
_TEXTS: Final = ("nodeString", "serviceName")
_TRUTH: Final = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False}
_TRUTH["off"] = False


@dataclass(frozen=True, slots=True)
class NamedAttribute:
    """
    An attribute that an argument of a command selects by name; case does not matter.

    @ivar aliases: other names of the attribute than that of the specification, separated by spaces.
    """

    attribute: type[Attribute]
    aliases: str = ""

    @property
    def name(self) -> str:
        """The name in the specification."""
        return self.attribute.__name__


def kindNamed(kinds: Iterable[K], name: str) -> K | None:
    """Return the kind with this name or alias, or None."""
    wanted = name.lower()
    return next((kind for kind in kinds if wanted in f"{kind.name} {kind.aliases}".lower().split()), None)


def rpcNamed(name: str) -> RPC:
    """
    Return the call with this case-insensitive name (C{SubnGet}).

    @raise InvalidRequest: there is no such call.
    """
    for known, rpc in RPCS.items():
        if known.lower() == name.lower():
            return rpc
    raise InvalidRequest(f"unknown call {name}; known calls: {', '.join(RPCS)}")


def attributeNamed(name: str, rpc: RPC | None = None) -> type[Attribute]:
    """
    Return the attribute with this case-insensitive name (C{PortInfo}).

    @param rpc: the call that carries the attribute; by default any call.
    @raise InvalidRequest: there is no such attribute, or the call does not carry it.
    """
    carried = {kind.__name__: kind for kind in attributesOf(rpc)}
    for known, kind in carried.items():
        if known.lower() == name.lower():
            return kind
    of = "" if rpc is None else f" of {rpc.name}"
    raise InvalidRequest(f"there is no attribute {name}{of}; there are {', '.join(sorted(carried))}")


def attributesOf(rpc: RPC | None) -> Iterator[type[Attribute]]:
    """Return all attributes that a call carries; without a call, all known attributes."""
    import txrdma.cm.layouts.messages
    import txrdma.mad.layouts.adaptive
    import txrdma.mad.layouts.baseboard
    import txrdma.mad.layouts.congestion
    import txrdma.mad.layouts.devices
    import txrdma.mad.layouts.pma
    import txrdma.mad.layouts.sa
    import txrdma.mad.layouts.smp
    import txrdma.mad.registers
    import txrdma.mad.vendor  # noqa: F401  # the modules declare attributes

    return (kind for kind in _declared(Attribute) if rpc is None or rpc.name in kind.rpcs)


def _declared(kind: type[Attribute]) -> Iterator[type[Attribute]]:
    """Yield the public subclasses of a type that declare their calls, rather than inherit them."""
    for each in kind.__subclasses__():
        if vars(each).get("rpcs") and not each.__name__.startswith(("_", _RAW)):
            yield each
        yield from _declared(each)


def rawAttribute(
    rpc: RPC, number: int, vendorClass: ManagementClass | None = None, oui: int = 0
) -> type[Attribute]:
    """Return an attribute type with this number and only bytes, as many as fit into a MAD of the call."""
    frame = formatOf(vendorClass or rpc.managementClass)
    isSMP = rpc.managementClass is ManagementClass.SUBN_LID
    available = _SMP_BYTES if isSMP else frame.size - frame.dataOffset
    body = {"__annotations__": {"content": "bytes"}, "__module__": __name__, "content": data(available)}
    made: type[Attribute] = wire(available)(type(f"{_RAW}{number:#06x}", (Attribute,), body))
    made.attributeID, made.rpcs = number, frozenset((rpc.name,))
    made.vendorClass, made.oui = vendorClass, oui
    return made


def isRaw(attribute: Attribute) -> bool:
    """Return whether the type of an attribute was created by L{rawAttribute}."""
    return type(attribute).__name__.startswith(_RAW)


def dumpLines(raw: bytes) -> Iterator[str]:
    """Return the lines of a dump: offset, then 16 bytes in hexadecimal."""
    return (f"{at:#06x}  {raw[at : at + 16].hex(' ', 4)}" for at in range(0, len(raw), 16))


def assigned(kind: type[Attribute], pairs: Iterable[Pair], base: Attribute | None = None) -> Attribute:
    """
    Return an attribute of the given type with these values of fields.

    C{inner.name}, or C{name} alone, is a field of an inner layout; C{name[3]} is an element of an array.

    @param base: has the values of all other fields; by default they are zero.
    @raise InvalidRequest: there is no such field, or the value does not fit.
    """
    made: Layout = kind() if base is None else base
    for name, text in pairs:
        match = _INDEXED.fullmatch(name)
        path = _fieldPath(kind, name if match is None else match[1])
        if match is None:
            value = read(path[-1], text)
        else:
            value = _oneOf(path[-1], _at(made, path), int(match[2]), text)
        made = _with(made, path, value)
    assert isinstance(made, Attribute)
    return made


def _at(layout: Layout, path: list[Field]) -> Any:
    """Return the value of a field, by the fields that lead to it."""
    value: Any = layout
    for field in path:
        value = getattr(value, field.name)
    return value


def _oneOf(field: Field, values: Any, index: int, text: str) -> Any:
    """Return the values of an array with one element replaced, whose index must be in range."""
    many = field.count or (len(values) if isinstance(values, bytes) else 0)
    if index >= many:
        raise InvalidRequest(f"{field.name}[{index}]: there are {many}, from 0 on")
    if isinstance(values, bytes) and field.count is None:
        number = _numbered(field.name, text, 8)
        return values[:index] + bytes((number,)) + values[index + 1 :]
    return (*values[:index], _readOne(field, text), *values[index + 1 :])


def _numbered(name: str, text: str, width: int) -> int:
    try:
        number = int(text, 0)
        if 0 <= number < 1 << width:
            return number
    except ValueError:
        pass
    raise InvalidRequest(f"{name}={text} does not fit into {width} bits")


def forSetting(attribute: Attribute) -> Attribute:
    """Prepare an attribute from a Get for a Set: states of a PortInfo become "no change" (IBA 14.2.5.6)."""
    from txrdma.iba.verbs import PhysicalState, PortState
    from txrdma.mad.layouts.smp import PortInfo

    if isinstance(attribute, PortInfo):
        attribute = attribute.replace(portState=PortState.NOP, portPhysicalState=PhysicalState.NOP)
    return attribute


def queried(record: type[Record], pairs: Iterable[Pair]) -> Query[Any]:
    """
    Return a query for records with these components; those of the inner attribute have the names of its
    fields.

    C{name[3]} is an element of an array; other elements are not compared.

    @raise InvalidRequest: there is no such component, it has no mask bit for each element, or the value does
        not fit.
    """
    masks, _ = componentsOf(record)
    known = {name.lower(): name for name in masks}
    values: dict[str, Any] = {}
    partial: dict[str, int] = {}
    for name, text in pairs:
        match = _INDEXED.fullmatch(name)
        requested = name if match is None else match[1]
        component = known.get(requested.rpartition(".")[2].lower())
        if component is None:
            raise InvalidRequest(
                f"{record.__name__} has no component {requested}; there are {', '.join(masks)}"
            )
        field = _fieldPath(record, component)[-1]
        if match is None:
            values[component] = read(field, text)
            continue
        zeros = values.get(component, read(field, "0"))
        values[component] = _oneOf(field, zeros, int(match[2]), text)
        if masks[component].bit_count() != len(zeros):
            raise InvalidRequest(f"{name}: the SA compares {component} as a whole, not single elements")
        first = masks[component] & -masks[component]
        partial[component] = partial.get(component, 0) | first << int(match[2])
    try:
        query = record.query(**values)
    except (WireError, TypeError) as error:
        raise InvalidRequest(str(error)) from error
    mask = query.mask
    for component, bits in partial.items():
        mask = mask & ~masks[component] | bits
    return query._replace(mask=mask)


def read(field: Field, text: str) -> Any:
    """
    Parse the value of a field; elements of an array are separated by commas.

    @raise InvalidRequest: the text is not a value of the field, or is too large.
    """
    if field.count is None:
        return _readOne(field, text)
    values = [_readOne(field, part) for part in text.split(",")]
    if len(values) > field.count:
        raise InvalidRequest(f"{field.name} has {field.count} values, not {len(values)}")
    zero = _readOne(field, "::" if field.width == 128 else "0")
    return tuple(values + [zero] * (field.count - len(values)))


def _readOne(field: Field, text: str) -> Any:
    kind = field.type
    if isinstance(kind, type) and issubclass(kind, Layout):
        inner = ", ".join(f"{field.name}.{one.name}" for one in kind.fields if not one.reserved)
        raise InvalidRequest(f"{field.name} has inner fields: {inner}")
    try:
        if kind is bytes:
            return _readBytes(field, text)
        if kind is bool:
            return _TRUTH[text.lower()]
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return _readCode(kind, text, field.width)
        if hasattr(kind, "fromString"):
            return kind.fromString(text)
        number = int(text, 0) if field.flags is None else _readFlags(field.flags, text)
        if not 0 <= number < 1 << field.width:
            raise ValueError
        return number
    except (ValueError, KeyError) as error:
        raise InvalidRequest(f"{field.name}={text} does not fit into {_wanted(field)}") from error


def _readBytes(field: Field, text: str) -> bytes:
    length = field.width // 8
    raw = bytes.fromhex(text[2:]) if text.startswith("0x") else text.encode()
    if len(raw) > length:
        raise ValueError
    return raw.ljust(length, b"\0")


def _readCode(kind: type[enum.Enum], text: str, width: int) -> enum.Enum:
    """Return the member of an enumeration with this case-insensitive name, or with this number."""
    names = {name.lower(): member for name, member in kind.__members__.items()}
    requested = text.lower()
    if requested in names:
        return names[requested]
    number = int(text, 0)
    if number >= 1 << width:
        raise ValueError
    return kind(number)


def _readFlags(flags: type[enum.IntFlag], text: str) -> int:
    """Return the bits of flags, given as one number or by their case-insensitive names."""
    names = {name.lower(): int(member) for name, member in flags.__members__.items()}
    requested = text.lower().split(",")
    if not names.keys() >= set(requested):
        return int(text, 0)
    return functools.reduce(operator.or_, [names[each] for each in requested])


def _wanted(field: Field) -> str:
    kind = field.type
    if field.flags is not None:
        return f"{field.width} bits, or some of {','.join(field.flags.__members__)}"
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return f"one of {', '.join(kind.__members__)}"
    if kind is bytes:
        return f"{field.width // 8} bytes, as text or in hexadecimal after 0x"
    return kind.__name__ if hasattr(kind, "fromString") else f"{field.width} bits"


def _fieldPath(kind: type[Layout], name: str) -> list[Field]:
    """Return the fields, from outer to inner, that lead to the named field."""
    head, dot, rest = name.partition(".")
    for field in kind.fields:
        if field.reserved or field.name.lower() != head.lower():
            continue
        if not dot:
            return [field]
        if _isLayout(field):
            return [field, *_fieldPath(field.type, rest)]
    if not dot:
        for field in kind.fields:
            if _isLayout(field) and any(inner.name.lower() == head.lower() for inner in field.type.fields):
                return [field, *_fieldPath(field.type, head)]
    names = [field.name for field in kind.fields if not field.reserved]
    raise InvalidRequest(f"{kind.__name__} has no field {name}; there are {', '.join(names)}")


def _isLayout(field: Field) -> bool:
    return isinstance(field.type, type) and issubclass(field.type, Layout) and field.count is None


def _with(layout: Layout, path: list[Field], value: Any) -> Layout:
    """Return a copy of a layout with another value of a field, by the fields that lead to it."""
    field, *rest = path
    if rest:
        value = _with(getattr(layout, field.name), rest, value)
    return layout.replace(**{field.name: value})


def attributeDict(layout: Layout) -> dict[str, Any]:
    """Return the fields of a layout for JSON: L{Attribute.toDict}, with texts as strings."""
    attribute: dict[str, Any] = layout.toDict()  # type: ignore[attr-defined]  # layouts of attributes have it
    for field in layout.fields:
        if field.name in _TEXTS:
            attribute[field.name] = getattr(layout, field.name).partition(b"\0")[0].decode("utf-8", "replace")
        elif _isLayout(field) and isinstance(attribute[field.name], dict):
            for inner in field.type.fields:
                if inner.name in _TEXTS:
                    raw = getattr(getattr(layout, field.name), inner.name)
                    attribute[field.name][inner.name] = raw.partition(b"\0")[0].decode("utf-8", "replace")
    return attribute
