"""Conversion of plain JSON values, as C{Attribute.toDict} makes them, to layouts, and of bytes to text."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, TypeVar

from txrdma.kit.wire import Layout
from txrdma.kit.wirefield import Field

T = TypeVar("T", bound=Layout)


def text(raw: bytes) -> str:
    """Text of UTF-8 bytes up to the first zero; invalid bytes and unprintable characters are replaced."""
    decoded = raw.partition(b"\0")[0].decode("utf-8", "replace")
    return (
        decoded
        if decoded.isprintable()
        else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in decoded)
    )


def fromPlain(kind: type[T], values: Mapping[str, object]) -> T:
    """
    Return a layout with these values of its fields; fields without a value are zero.

    Numbers may be texts (C{"0x10"}), enumerations names or numbers, C{GID}s and C{GUID}s are texts, inner
    layouts are mappings, and arrays are complete lists. Bytes are texts in hexadecimal, or plain text for
    fields that contain text; C{{"hex": ...}} gives the bytes of such a field if they are not text.

    @raise ValueError: a field is unknown, or a value does not fit into its field.
    """
    fields = {field.name: field for field in kind.fields if not field.reserved}
    unknown = sorted(values.keys() - fields.keys())
    if unknown:
        raise ValueError(f"{kind.__name__} has no field {', '.join(unknown)}: there are {', '.join(fields)}")
    return kind(**{name: _read(kind, fields[name], value) for name, value in values.items()})


def _read(kind: type[Layout], field: Field, value: object) -> object:
    try:
        if field.count is None:
            return _one(field, value)
        if not isinstance(value, (list, tuple)) or len(value) != field.count:
            raise ValueError(f"the field has {field.count} values")
        return tuple(_one(field, each) for each in value)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{kind.__name__}.{field.name}: {value!r} does not fit: {error}") from error


def _one(field: Field, value: Any) -> object:
    of = field.type
    if isinstance(of, type) and issubclass(of, Layout):
        if not isinstance(value, Mapping):
            raise ValueError("it takes a mapping")
        return fromPlain(of, value)
    if of is bytes:
        return _bytes(field, value)
    if hasattr(of, "fromBytes"):
        if not isinstance(value, (str, of)):
            raise ValueError(f"it takes a {of.__name__}")
        return of.fromString(value) if isinstance(value, str) else value
    if of is bool:
        if value in (0, 1):
            return bool(value)
        raise ValueError("expected true or false")
    number = _number(of, value)
    if number >> field.width:
        raise ValueError(f"the field has {field.width} bits")
    return of(number) if issubclass(of, enum.Enum) else number


def _bytes(field: Field, value: Any) -> bytes:
    length = field.width // 8
    if isinstance(value, Mapping) and value.keys() == {"hex"}:
        value = bytes.fromhex(value["hex"])
    if isinstance(value, (bytes, list, tuple)):
        raw = bytes(value)
    elif not isinstance(value, str):
        raise ValueError("it takes bytes")
    elif field.shown is text:
        raw = value.encode().ljust(length, b"\0")
    else:
        raw = bytes.fromhex(value)
    if len(raw) != length:
        raise ValueError(f"the field has {length} bytes")
    return raw


def _number(of: Any, value: object) -> int:
    if isinstance(value, int):
        return value
    if not isinstance(value, str):
        raise ValueError("it takes a number")
    if issubclass(of, enum.Enum) and value in of.__members__:
        return int(of[value])
    if issubclass(of, enum.Enum):
        value = value.removeprefix("UNKNOWN_")
    return int(value, 0)
