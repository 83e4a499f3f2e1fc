"""
Declarations of binary layouts, from which their methods for decoding and encoding are generated::

    @wire(8)
    class DETH(Layout):
        \"""Datagram extended transport header (IBA 9.3.3).\"""

        qkey: int = bits(32)
        reserved: int = bits(8)
        source: QPN = bits(24)

The annotation is the type of the field: C{int}, a C{NewType} of it, C{bool}, an enumeration, C{bytes}, a
value class with C{fromBytes} and C{toBytes}, another layout, or a C{tuple[..., ...]} of one of these. A value
class may name its only slot as C{wireSlot}; decoding then stores a field's bytes there. A method of a layout
is compiled to straight-line code after some calls, since programs import many more layouts than they use, and
most of those are only decoded, or only encoded, and rarely.
"""

from __future__ import annotations

import builtins
import enum
import inspect
import struct
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar, Final, NoReturn, TypeVar, Union

from typing_extensions import dataclass_transform, Self

from txrdma.error import WireError
from txrdma.kit.values import frozen
from txrdma.kit.wirefield import Field

__all__ = ["Code", "Layout", "array", "bits", "data", "nested", "reserved", "wire"]

Buffer = Union[bytes, bytearray, memoryview]
T = TypeVar("T", bound="Layout")


class Code(enum.IntEnum):
    """Codes of a protocol; an unknown code keeps its number and is named C{UNKNOWN_...}."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, int) or value < 0:
            return None
        member = int.__new__(cls, value)  # not cached: peers could send any number of them
        member._name_ = f"UNKNOWN_{value:#x}"
        member._value_ = value
        return member

    def __reduce_ex__(self, protocol: object) -> tuple[type[Self], tuple[int]]:
        """Pickle by number: Python 3.11.2 of Debian 12 pickles by name, which fails for C{UNKNOWN_...}."""
        return type(self), (self._value_,)

    @property
    def known(self) -> bool:
        """Whether the enumeration declares the number."""
        return self._value_ in type(self)._value2member_map_


@frozen(eq=False)
class _Spec:
    """Declaration of a field, which is assigned to its name in the class."""

    width: int | None = None
    count: int | None = None
    bytewise: bool = False
    reserved: bool = False
    shown: Callable[[Any], str] | None = None
    flags: type[enum.IntFlag] | None = None


# These return Any so that "field: Type = bits(8)" is valid for every type.


def bits(
    width: int,
    *,
    shown: Callable[[Any], str] | None = None,
    flags: type[enum.IntFlag] | None = None,
) -> Any:
    """
    Declare a field of C{width} bits, the most significant one first.

    @param shown: formats a value as readable text; see L{Field.shown}.
    @param flags: names of the bits; see L{Field.flags}.
    """
    return _Spec(width=width, shown=shown, flags=flags)


def data(length: int, *, shown: Callable[[Any], str] | None = None) -> Any:
    """Declare a field of C{length} bytes: C{bytes}, or a value class."""
    return _Spec(width=length * 8, bytewise=True, shown=shown)


def nested() -> Any:
    """Declare a field with another layout, which the annotation names."""
    return _Spec()


def array(count: int, element: Any = None) -> Any:
    """Declare a tuple of C{count} equal fields; C{element} is omitted for layouts."""
    spec = element if element is not None else _Spec()
    return _Spec(spec.width, count, spec.bytewise, shown=spec.shown)


def reserved(width: int) -> Any:
    """Declare reserved bits: decoded and encoded unchanged, zero by default, in C{repr} only if set."""
    return _Spec(width=width, reserved=True)


class Layout:
    """
    Base class of all layouts. Two are equal if all their fields are equal; treat them as immutable.

    A layout that is derived from another begins with its fields.
    """

    __slots__: tuple[str, ...] = ()

    size: ClassVar[int]
    fields: ClassVar[tuple[Field, ...]]
    _names: ClassVar[tuple[str, ...]]
    _values: tuple[object, ...]

    @classmethod
    def decode(cls, buffer: Buffer, offset: int = 0) -> Self:
        """
        Decode a layout at C{offset} of a buffer; the bytes after it are ignored.

        @raise WireError: the buffer is too short, or an enumeration other than a L{Code} lacks a value.
        """
        raise NotImplementedError

    def encode(self) -> bytes:
        """Return the encoded bytes. Raises L{WireError} if a value does not fit into its field."""
        raise NotImplementedError

    def encodeInto(self, buffer: bytearray | memoryview, offset: int = 0) -> None:
        """Encode into a writable buffer at C{offset}; raise the errors of L{encode}."""
        raise NotImplementedError

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed."""
        names = self._names
        values = dict(zip(names, self._values, strict=True))
        values.update(changes)
        if len(values) > len(names):
            unknown = changes.keys() - set(names)
            raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(unknown))}")
        return type(self)(**values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values == other._values

    def __hash__(self) -> int:
        return hash(self._values)

    def __repr__(self) -> str:
        shown = [
            f"{field.name}={_show(getattr(self, field.name))}"
            for field in self.fields
            if not field.reserved or getattr(self, field.name) != _zero(field)
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


def _show(value: object) -> str:
    return f"{type(value).__name__}.{value.name}" if isinstance(value, Code) else repr(value)


@dataclass_transform(kw_only_default=True, frozen_default=True)
def wire(size: int, *, little: bool = False) -> Callable[[type[T]], type[T]]:
    """
    Return a decorator that makes a class a layout of C{size} bytes; its fields must fill it exactly.

    @param little: whether the layout is little-endian; the first field in a byte then has the lowest bits.
    """
    names = sys._getframe(1).f_locals

    def decorate(cls: type[T]) -> type[T]:
        return _build(cls, size, little, names)

    return decorate


# Construction, once for each layout.


_METHODS: Final = ("__init__", "decode", "encode", "encodeInto")

_GENERIC_CALLS: Final = 16
"""Number of calls of generic code before a method is compiled, which takes as long as about fifty calls."""


def _build(cls: type[T], size: int, little: bool, names: dict[str, Any]) -> type[T]:
    """Return a class with slots for the fields, and with methods that are compiled later."""
    fields = _fields(cls, names)
    total = sum(field.width * (field.count if field.count is not None else 1) for field in fields)
    if total != size * 8:
        raise TypeError(f"{cls.__qualname__} declares {total} bits, not {size} bytes")
    slots = tuple(field.name for field in fields if field.name in vars(cls))
    namespace = {
        key: value
        for key, value in vars(cls).items()
        if key != "__dict__" and key != "__weakref__" and key not in slots
    }
    namespace |= {
        "__slots__": slots,
        "size": size,
        "fields": fields,
        "_names": (declared := tuple(field.name for field in fields)),
        "_values": property(_reader(declared)),
    }
    made: type[T] = type(cls.__name__, cls.__bases__, namespace)
    for name in _METHODS:
        _uncompiled[made, name] = little
        _install(made, name, _compiledLater(made, name, little))
    return made


def _reader(names: Sequence[str]) -> Callable[[Layout], tuple[object, ...]]:
    """Return a function that returns these attributes of a layout."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda layout: tuple([getattr(layout, name) for name in names])


def _fields(cls: type[Layout], names: dict[str, Any]) -> tuple[Field, ...]:
    """Return the declared fields, behind those of the base; raises TypeError for a wrong declaration."""
    fields = list(getattr(cls, "fields", ()))
    offset = 0 if not fields else cls.size * 8
    for name, annotation in inspect.get_annotations(cls).items():
        spec = vars(cls).get(name)
        if not isinstance(spec, _Spec):
            continue
        if any(field.name == name for field in fields):
            raise TypeError(f"{cls.__qualname__}.{name}: a base has this field already")
        if hasattr(Layout, name) or name in {"size", "fields"}:
            raise TypeError(f"{cls.__qualname__}.{name}: every layout has an attribute of this name")
        of = _resolved(annotation, cls, names)
        if spec.count is not None:
            of = typing.get_args(of)[0]
        while hasattr(of, "__supertype__"):
            of = of.__supertype__
        width = spec.width
        if width is None:
            if not (isinstance(of, type) and issubclass(of, Layout)):
                raise TypeError(f"{cls.__qualname__}.{name}: its width is missing")
            width = of.size * 8
        hidden = spec.reserved or name.startswith("reserved")
        field = Field(name, of, _kind(of), width, offset, spec.count, hidden, spec.shown, spec.flags)
        _check(cls, field, spec)
        fields.append(field)
        offset += width * (1 if spec.count is None else spec.count)
    _checkRuns(cls, fields)
    return tuple(fields)


def _resolved(annotation: Any, cls: type, names: Mapping[str, Any]) -> Any:
    """Return the type of an annotation: ten times as fast as C{typing.get_type_hints} for a plain name."""
    if not isinstance(annotation, str):
        return annotation
    module = vars(sys.modules[cls.__module__])
    for scope in (names, module, vars(builtins)):
        if annotation in scope:
            return scope[annotation]
    return eval(annotation, module, dict(names))


def _kind(of: Any) -> str:
    if of is bytes:
        return "bytes"
    if isinstance(of, type) and issubclass(of, Layout):
        return "layout"
    return "value" if hasattr(of, "fromBytes") else "number"


def _check(cls: type, field: Field, spec: _Spec) -> None:
    where = f"{cls.__qualname__}.{field.name}"
    isNumber = field.kind == "number"
    if spec.bytewise and isNumber:
        raise TypeError(f"{where}: data() is for bytes and value classes")
    if not isNumber and (field.offset % 8 or field.width % 8):
        raise TypeError(f"{where}: its width is not a multiple of 8 bits")
    if isNumber and not (isinstance(field.type, type) and issubclass(field.type, int)):
        raise TypeError(f"{where}: unsupported type {field.type!r}")
    if isNumber and issubclass(field.type, enum.Flag) and field.width > 16:
        raise TypeError(f"{where}: enum remembers every combination of flags, and a peer could send all")
    if field.type is bool and field.width != 1:
        raise TypeError(f"{where}: a bool is one bit")


def _checkRuns(cls: type, fields: Sequence[Field]) -> None:
    """Check that fields which share bytes fit into 64 bits, since they are read from one number."""
    begin = 0
    for field in fields:
        for offset in field.offsets():
            if offset % 8 == 0:
                begin = offset
            elif offset + field.width - begin > 64:
                raise TypeError(f"{cls.__qualname__}: {field.name} does not end in a whole byte")
            if field.width % 8 == 0 and offset % 8 == 0:
                break  # and so are all elements of an array


_uncompiled: dict[tuple[type[Layout], str], bool] = {}
"""Methods of layouts that are not compiled yet, and whether the layouts are little-endian."""


def _compiledLater(cls: type[Layout], name: str, little: bool) -> Callable[..., Any]:
    """Return a method that uses generic code for some calls, and then is replaced by compiled code."""
    generic, left = _GENERIC[name], _GENERIC_CALLS

    def method(self: Any, *args: Any, **values: Any) -> Any:
        nonlocal left
        if left:
            left -= 1
            result = generic(self, little, *args, **values)
            if result is not NotImplemented:
                return result
        _compile(cls, name)
        made = vars(cls)[name]
        return getattr(made, "__func__", made)(self, *args, **values)

    return method


def _install(cls: type[Layout], name: str, function: Any) -> None:
    function.__name__, function.__qualname__ = name, f"{cls.__qualname__}.{name}"
    function.__module__ = cls.__module__
    function.__doc__ = getattr(Layout, name).__doc__
    setattr(cls, name, classmethod(function) if name == "decode" else function)


def _compile(cls: type[Layout], name: str) -> None:
    """Compile a method, unless it is compiled already."""
    little = _uncompiled.get((cls, name))
    if little is None:
        return
    from txrdma.kit import wirecode  # rarely needed, so imported late

    for field in cls.fields:
        if field.kind == "layout" and name == "decode":
            _compile(field.type, name)  # the code of the outer layout refers to it
    defaults = [_zero(field) for field in cls.fields] if name == "__init__" else []
    errors = {"_badRead": _badRead, "_badWrite": _badWrite}
    _install(cls, name, wirecode.compileMethod(cls, name, little, defaults, errors))
    _uncompiled.pop((cls, name), None)


# Generic code, for the first calls. It returns NotImplemented for any error, which the compiled code then
# reports.


def _initGenerically(self: Layout, little: bool, /, *args: Any, **values: Any) -> Any:
    for field in self.fields:
        setattr(self, field.name, values.pop(field.name) if field.name in values else _zero(field))
    return NotImplemented if args or values else None


def _decodeGenerically(cls: type[Layout], little: bool, buffer: Buffer, offset: int = 0) -> Any:
    raw = bytes(buffer[offset : offset + cls.size])
    if offset < 0 or len(raw) != cls.size:
        return NotImplemented
    self = object.__new__(cls)
    whole, width = int.from_bytes(raw, "little" if little else "big"), cls.size * 8
    try:
        for field in cls.fields:
            found = [
                _readField(field, raw, at, whole >> (at if little else width - at - field.width))
                for at in field.offsets()
            ]
            setattr(self, field.name, found[0] if field.count is None else tuple(found))
    except (ValueError, OverflowError):
        return NotImplemented
    return self


def _readField(field: Field, raw: bytes, offset: int, number: int) -> Any:
    """Decode a field or an element, which is in the lowest bits of C{number}."""
    if field.kind == "number":
        return field.type(number & ((1 << field.width) - 1))
    own = raw[offset // 8 : (offset + field.width) // 8]
    if field.kind == "bytes":
        return own
    return field.type.decode(own) if field.kind == "layout" else field.type.fromBytes(own)


def _encodeGenerically(self: Layout, little: bool) -> Any:
    whole, width, raw = 0, self.size * 8, bytearray(self.size)
    try:
        for field in self.fields:
            value = getattr(self, field.name)
            for one, at in zip((value,) if field.count is None else value, field.offsets(), strict=True):
                if field.kind != "number":
                    raw[at // 8 : (at + field.width) // 8] = _fieldBytes(field, one)
                elif one >> field.width:
                    return NotImplemented
                else:
                    whole |= one << (at if little else width - at - field.width)
    except (AttributeError, OverflowError, TypeError, ValueError):
        return NotImplemented
    if little:
        return (int.from_bytes(raw, "little") | whole).to_bytes(self.size, "little")
    return (int.from_bytes(raw, "big") | whole).to_bytes(self.size, "big")


def _fieldBytes(field: Field, value: Any) -> bytes:
    size = field.width // 8
    if field.kind == "layout":
        value = value.encode()
    elif field.kind == "value":
        value = value.toBytes()
    if not isinstance(value, (bytes, bytearray)) or len(value) != size:
        raise ValueError
    return bytes(value)


def _encodeIntoGenerically(
    self: Layout, little: bool, buffer: bytearray | memoryview, offset: int = 0
) -> Any:
    raw = _encodeGenerically(self, little)
    if raw is NotImplemented:
        return raw
    try:
        struct.pack_into(f"{self.size}s", buffer, offset, raw)
    except struct.error:
        return NotImplemented
    return None


_GENERIC: Final[dict[str, Callable[..., Any]]] = {
    "__init__": _initGenerically,
    "decode": _decodeGenerically,
    "encode": _encodeGenerically,
    "encodeInto": _encodeIntoGenerically,
}


def _zero(field: Field) -> object:
    """Return the default value of a field: zero, or zero bytes."""
    of = field.type
    one: object
    if of is bytes:
        one = bytes(field.width // 8)
    elif issubclass(of, Layout):
        one = of()
    elif hasattr(of, "fromBytes"):
        one = of.fromBytes(bytes(field.width // 8))
    else:
        try:
            one = of(0)
        except ValueError:  # an enumeration without zero: the number itself can be encoded, too
            one = 0
    return one if field.count is None else (one,) * field.count


def _badRead(cls: type[Layout], buffer: Buffer, offset: int, reason: Exception) -> WireError:
    there = len(buffer) - offset
    if there < cls.size:
        return WireError(cls.__name__, offset, f"{max(there, 0)} of {cls.size} bytes")
    return WireError(cls.__name__, offset, str(reason))


def _badWrite(self: Layout, buffer: Buffer | None, offset: int) -> NoReturn:
    """Raise a L{WireError} that names the value that does not fit."""
    name = type(self).__name__
    for field in self.fields:
        value = getattr(self, field.name)
        values = (value,) if field.count is None else tuple(value)
        if field.count is not None and len(values) != field.count:
            raise WireError(name, field.offset // 8, f"{field.name} takes {field.count}, not {len(values)}")
        kind = field.kind
        for one in values:
            if kind == "number" and one >> field.width:
                raise WireError(
                    name, field.offset // 8, f"{field.name} has {field.width} bits: {one!r} is too large"
                )
            raw = one.toBytes() if kind == "value" else one if kind == "bytes" else None
            if raw is not None and len(raw) * 8 != field.width:
                raise WireError(
                    name, field.offset // 8, f"{field.name} takes {field.width // 8} bytes: {one!r}"
                )
    available = 0 if buffer is None else len(buffer) - offset
    raise WireError(name, offset, f"it has {self.size} bytes, but there is room for {max(available, 0)}")
