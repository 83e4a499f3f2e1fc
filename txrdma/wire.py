"""
The declaration kit for binary layouts: bytes are declared once::

    @wire(8)
    class DETH(Layout):
        \"""Datagram extended transport header (IBA 9.3.3).\"""

        qkey: int = bits(32)
        reserved: int = bits(8)
        source: QPN = bits(24)

What stands in a field is said by its annotation: C{int}, a C{NewType} of it, C{bool}, an enumeration,
C{bytes}, a value class with C{fromBytes} and C{toBytes}, another layout, or a C{tuple[..., ...]} of one
of these. Straight-line code is made for each method of a layout when it is used first: programs import many
more layouts than they use, and most of these they only read, or only write.
"""

from __future__ import annotations

import builtins
import enum
import inspect
import struct
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, NoReturn, TypeVar, Union

from typing_extensions import dataclass_transform, Self

from txrdma.error import WireError
from txrdma.values import frozen

__all__ = ["Code", "Field", "Layout", "array", "bits", "data", "nested", "reserved", "wire"]

Buffer = Union[bytes, bytearray, memoryview]
T = TypeVar("T", bound="Layout")


class Code(enum.IntEnum):
    """A protocol's codes: one that we don't know keeps its number and is called C{UNKNOWN_...}."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, int) or value < 0:
            return None
        member = int.__new__(cls, value)  # not remembered: peers could make us remember without end
        member._name_ = f"UNKNOWN_{value:#x}"
        member._value_ = value
        return member

    def __reduce_ex__(self, protocol: object) -> tuple[type[Self], tuple[int]]:
        """By its number: Debian 12's Python 3.11.2 goes by the name, and the class has no UNKNOWN_..."""
        return type(self), (self._value_,)

    @property
    def known(self) -> bool:
        """Whether the number is in the enumeration."""
        return self._value_ in type(self)._value2member_map_


@frozen
class _Spec:
    """What stands to the right of a field's name."""

    width: int | None = None
    count: int | None = None
    little: bool = False
    bytewise: bool = False
    reserved: bool = False
    shown: Callable[[Any], str] | None = None


# These return Any so that "field: Type = bits(8)" is right for every Type.


def bits(width: int, *, little: bool = False, shown: Callable[[Any], str] | None = None) -> Any:
    """
    A field of that many bits, most significant first.

    @param little: least significant byte first, in a layout that otherwise is big-endian.
    @param shown: how people want to read it; see L{Field.shown}.
    """
    return _Spec(width=width, little=little, shown=shown)


def data(length: int, *, shown: Callable[[Any], str] | None = None) -> Any:
    """A field of that many bytes: C{bytes}, or a value class."""
    return _Spec(width=length * 8, bytewise=True, shown=shown)


def nested() -> Any:
    """Another layout, as it stands in the annotation."""
    return _Spec()


def array(count: int, element: Any = None) -> Any:
    """C{count} times the same, as a tuple; C{element} is left out for layouts."""
    spec = element if element is not None else _Spec()
    return _Spec(spec.width, count, spec.little, spec.bytewise, shown=spec.shown)


def reserved(width: int) -> Any:
    """Bits that mean nothing: kept as they came, zero in what we make, not shown unless set."""
    return _Spec(width=width, reserved=True)


@frozen
class Field:
    """
    One field of a layout, for those that want to look: tests, dumpers, documentation.

    @ivar type: of one element, when C{count} is not None.
    @ivar width: bits of one element.
    @ivar offset: bits from the beginning of the layout.
    @ivar shown: makes a text of the value for people; None where C{str} will do.
    """

    name: str
    type: Any
    width: int
    offset: int
    count: int | None
    little: bool
    reserved: bool
    shown: Callable[[Any], str] | None = None


class Layout:
    """What every class under L{wire} is. Two are equal when all their fields are; treat them as frozen."""

    __slots__ = ()

    size: ClassVar[int]
    fields: ClassVar[tuple[Field, ...]]

    @classmethod
    def decode(cls, buffer: Buffer, offset: int = 0) -> Self:
        """
        Read one at C{offset}; what follows it does not matter.

        @raise WireError: the buffer is too short, or a closed enumeration does not have the code.
        """
        raise NotImplementedError

    def encode(self) -> bytes:
        """
        Its bytes.

        @raise WireError: a value does not fit into its field.
        """
        raise NotImplementedError

    def encodeInto(self, buffer: bytearray | memoryview, offset: int = 0) -> None:
        """As L{encode}, into a writable buffer."""
        raise NotImplementedError

    def replace(self, **changes: Any) -> Self:
        """The same with some fields changed."""
        values = {field.name: getattr(self, field.name) for field in self.fields}
        unknown = changes.keys() - values.keys()
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(unknown))}")
        return type(self)(**{**values, **changes})

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, field.name) for field in self.fields)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

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
    Make a layout of C{size} bytes from a class's annotated fields; they must fill it exactly.

    @param little: all of it is little-endian; of fields that share a byte the first has its lowest bits.
    """
    names = sys._getframe(1).f_locals

    def decorate(cls: type[T]) -> type[T]:
        return _build(cls, size, little, names)

    return decorate


# The rest is done once for each layout.


class _Codes(dict[int, Any]):
    """Number to member: as fast as a dict for what is known."""

    def __init__(self, kind: type[enum.Enum]) -> None:
        super().__init__({int(m.value): m for m in kind.__members__.values()})
        self._kind = kind

    def __missing__(self, number: int) -> Any:
        member = self._kind(number)
        if isinstance(member, enum.Flag):  # there are 65536 at most
            self[number] = member
        return member


@frozen
class _Leaf:
    """One thing on the wire: a field, or an element of an array."""

    field: Field
    index: int | None
    offset: int

    @property
    def reading(self) -> str:
        return f"self.{self.field.name}" + ("" if self.index is None else f"[{self.index}]")

    @property
    def kind(self) -> str:
        of = self.field.type
        if of is bytes:
            return "bytes"
        if isinstance(of, type) and issubclass(of, Layout):
            return "layout"
        return "value" if hasattr(of, "fromBytes") else "number"

    @property
    def bytewise(self) -> bool:
        return self.kind != "number" or self.field.little


@frozen
class _Group:
    """Leaves that one item of a C{struct} format carries."""

    format: str
    width: int
    leaves: tuple[_Leaf, ...]


_METHODS = ("__init__", "decode", "encode", "encodeInto")
_NATURAL = {8: "B", 16: "H", 32: "I", 64: "Q"}


def _build(cls: type[T], size: int, little: bool, names: dict[str, Any]) -> type[T]:
    fields = _fields(cls, little, names)
    total = sum(field.width * (field.count if field.count is not None else 1) for field in fields)
    if total != size * 8:
        raise TypeError(f"{cls.__qualname__} declares {total} bits, not {size} bytes")
    namespace = {
        key: value
        for key, value in vars(cls).items()
        if key not in {"__dict__", "__weakref__"} and key not in {field.name for field in fields}
    }
    namespace |= {"__slots__": tuple(field.name for field in fields), "size": size, "fields": fields}
    made: type[T] = type(cls.__name__, cls.__bases__, namespace)
    for name in _METHODS:
        _postponed[made, name] = little
        _put(made, name, _maker(made, name))
    return made


def _fields(cls: type[Layout], little: bool, names: dict[str, Any]) -> tuple[Field, ...]:
    fields = []
    offset = 0
    for name, annotation in inspect.get_annotations(cls).items():
        spec = vars(cls).get(name)
        if not isinstance(spec, _Spec):
            continue
        if hasattr(Layout, name) or name in {"size", "fields"}:
            raise TypeError(f"{cls.__qualname__}.{name}: every layout has this name already")
        of = _resolved(annotation, cls, names)
        if spec.count is not None:
            of = typing.get_args(of)[0]
        while hasattr(of, "__supertype__"):
            of = of.__supertype__
        width = spec.width
        if width is None:
            if not (isinstance(of, type) and issubclass(of, Layout)):
                raise TypeError(f"{cls.__qualname__}.{name}: how wide?")
            width = of.size * 8
        hidden = spec.reserved or name.startswith("reserved")
        field = Field(name, of, width, offset, spec.count, spec.little and not little, hidden, spec.shown)
        _check(cls, field, spec)
        fields.append(field)
        offset += width * (1 if spec.count is None else spec.count)
    _checkRuns(cls, fields)
    return tuple(fields)


def _resolved(annotation: Any, cls: type, names: Mapping[str, Any]) -> Any:
    """What an annotation means. Most are a name: C{typing.get_type_hints} takes ten times as long for it."""
    if not isinstance(annotation, str):
        return annotation
    module = vars(sys.modules[cls.__module__])
    for scope in (names, module, vars(builtins)):
        if annotation in scope:
            return scope[annotation]
    return eval(annotation, module, dict(names))


def _check(cls: type, field: Field, spec: _Spec) -> None:
    where = f"{cls.__qualname__}.{field.name}"
    leaf = _Leaf(field, None, field.offset)
    if spec.bytewise and leaf.kind == "number":
        raise TypeError(f"{where}: data() is for bytes and value classes")
    if leaf.bytewise and (field.offset % 8 or field.width % 8):
        raise TypeError(f"{where}: must be whole bytes")
    if leaf.kind == "number" and not (isinstance(field.type, type) and issubclass(field.type, int)):
        raise TypeError(f"{where}: don't know how to read {field.type!r}")
    if leaf.kind == "number" and issubclass(field.type, enum.Flag) and field.width > 16:
        raise TypeError(f"{where}: enum remembers every combination of flags, and a peer could send all")
    if field.type is bool and field.width != 1:
        raise TypeError(f"{where}: a bool is one bit")


def _checkRuns(cls: type, fields: Sequence[Field]) -> None:
    """What shares bytes with its neighbours is read with them from one number, and that has 64 bits."""
    begin = 0
    for field in fields:
        for offset in range(field.offset, field.offset + field.width * (field.count or 1), field.width):
            if offset % 8 == 0:
                begin = offset
            elif offset + field.width - begin > 64:
                raise TypeError(f"{cls.__qualname__}: {field.name} does not end in a whole byte")
            if field.width % 8 == 0 and offset % 8 == 0:
                break  # and so are all of an array


def _grouped(leaves: Sequence[_Leaf]) -> list[_Group]:
    """Cut the leaves into items of a struct, at the least cost: a native word for each is cheapest."""
    best: list[tuple[float, int, _Group | None]] = [(0.0, 0, None)]
    for end in range(1, len(leaves) + 1):
        chosen: tuple[float, int, _Group | None] = (float("inf"), 0, None)
        for begin in range(end - 1, -1, -1):
            run = tuple(leaves[begin:end])
            width = run[-1].offset + run[-1].field.width - run[0].offset
            alone = len(run) == 1
            if (not alone and width > 64) or (not alone and any(leaf.bytewise for leaf in run)):
                break
            if run[0].offset % 8 or width % 8:
                continue
            group, cost = _group(run, width)
            if best[begin][0] + cost < chosen[0]:
                chosen = (best[begin][0] + cost, begin, group)
        best.append(chosen)
    groups = []
    at = len(leaves)
    while at:
        cost, before, chosenGroup = best[at]
        assert chosenGroup is not None  # or _checkRuns would have refused
        groups.append(chosenGroup)
        at = before
    return groups[::-1]


def _group(run: tuple[_Leaf, ...], width: int) -> tuple[_Group, float]:
    first = run[0]
    if first.kind == "layout":
        return _Group(f"{width // 8}x", width, run), 1.0
    if not first.bytewise and width in _NATURAL:
        return _Group(_NATURAL[width], width, run), 1.0 + (2.0 * len(run) if len(run) > 1 else 0.0)
    return _Group(f"{width // 8}s", width, run), (1.0 if first.kind != "number" else 6.0 + 2.0 * len(run))


_postponed: dict[tuple[type[Layout], str], bool] = {}
"""Methods of layouts that have no code so far, and whether the layouts are little-endian."""


def _maker(cls: type[Layout], name: str) -> Callable[..., Any]:
    """A method that makes the code, which takes its place, and goes on with that."""

    def method(self: Any, *args: Any, **values: Any) -> Any:
        _ready(cls, name)
        made = vars(cls)[name]
        return getattr(made, "__func__", made)(self, *args, **values)

    return method


def _put(cls: type[Layout], name: str, function: Any) -> None:
    function.__name__, function.__qualname__ = name, f"{cls.__qualname__}.{name}"
    function.__module__ = cls.__module__
    function.__doc__ = getattr(Layout, name).__doc__
    setattr(cls, name, classmethod(function) if name == "decode" else function)


def _ready(cls: type[Layout], name: str) -> None:
    """Make a method's code, unless that has been done."""
    little = _postponed.get((cls, name))
    if little is not None:
        _compile(cls, name, little)
        _postponed.pop((cls, name), None)


@cache
def _groups(cls: type[Layout]) -> list[_Group]:
    leaves = [
        _Leaf(field, index if field.count is not None else None, field.offset + index * field.width)
        for field in cls.fields
        for index in range(1 if field.count is None else field.count)
    ]
    return _grouped(leaves)


def _compile(cls: type[Layout], name: str, little: bool) -> None:
    scope: dict[str, Any] = {"_new": object.__new__, "_int": int.from_bytes, "_error": struct.error}
    scope |= {"_badRead": _badRead, "_badWrite": _badWrite, "bytes": bytes, "bytearray": bytearray}
    if name == "__init__":
        source = _constructor(cls, scope)
    else:
        groups = _groups(cls)  # type: ignore[arg-type]  # mypy: a class hashes as its instances
        packer = struct.Struct(("<" if little else ">") + "".join(group.format for group in groups))
        scope |= {"_unpack": packer.unpack_from, "_pack": packer.pack, "_packInto": packer.pack_into}
        isRead = name == "decode"
        source = _decoder(groups, little, scope) if isRead else _encoder(cls, groups, little)[name]
    exec(compile("\n".join(source), f"<layout {cls.__module__}.{cls.__qualname__}>", "exec"), scope)  # noqa: S102 (our own text)
    _put(cls, name, scope[name])


def _zero(field: Field) -> object:
    """What a field holds that nobody gave."""
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
        except ValueError:  # an enumeration without zero: the number will do, encoding takes it
            one = 0
    return one if field.count is None else (one,) * field.count


def _constructor(cls: type[Layout], scope: dict[str, Any]) -> list[str]:
    parameters = []
    for number, field in enumerate(cls.fields):
        scope[f"_default{number}"] = _zero(field)
        parameters.append(f"{field.name}=_default{number}")
    head = f"def __init__(self, *, {', '.join(parameters)}):" if parameters else "def __init__(self):"
    return [head, *(f"    self.{field.name} = {field.name}" for field in cls.fields), "    pass"]


def _decoder(groups: list[_Group], little: bool, scope: dict[str, Any]) -> list[str]:
    items = [f"v{number}" for number, group in enumerate(groups) if group.leaves[0].kind != "layout"]
    values: dict[str, list[str]] = {}
    prepare = []
    for number, group in enumerate(groups):
        if group.format.endswith("s") and group.leaves[0].kind == "number":
            order = "little" if little or group.leaves[0].field.little else "big"
            prepare.append(f"        v{number} = _int(v{number}, {order!r})")
        for leaf in group.leaves:
            shift = _shift(leaf, group, little)
            values.setdefault(leaf.field.name, []).append(_read(leaf, group, f"v{number}", shift, scope))
    fields = {leaf.field.name: leaf.field for group in groups for leaf in group.leaves}
    assigned = [
        f"        self.{name} = " + (found[0] if fields[name].count is None else f"({', '.join(found)},)")
        for name, found in values.items()
    ]
    target = f"({', '.join(items)},) = " if items else ""
    return [
        "def decode(cls, buffer, offset=0):",
        "    try:",
        "        if offset < 0:",
        "            raise ValueError('the offset is negative')",
        f"        {target}_unpack(buffer, offset)",
        "        self = _new(cls)",
        *prepare,
        *assigned,
        "        return self",
        "    except (_error, ValueError, OverflowError) as reason:",
        "        raise _badRead(cls, buffer, offset, reason) from None",
    ]


def _shift(leaf: _Leaf, group: _Group, little: bool) -> int:
    into = leaf.offset - group.leaves[0].offset
    return into if little else group.width - into - leaf.field.width


def _read(leaf: _Leaf, group: _Group, item: str, shift: int, scope: dict[str, Any]) -> str:
    of = leaf.field.type
    name = f"_of_{leaf.field.name}"
    if leaf.kind == "layout":
        _ready(of, "decode")
        scope[name] = of.decode
        return f"{name}(buffer, offset + {leaf.offset // 8})"
    if leaf.kind == "bytes":
        return item
    if leaf.kind == "value":
        scope[name] = of.fromBytes
        return f"{name}({item})"
    if of is bool:
        return f"{item} & {1 << shift:#x} != 0"
    number = item if not shift else f"{item} >> {shift}"
    if shift + leaf.field.width < group.width:
        mask = (1 << leaf.field.width) - 1
        number = f"{number} & {mask:#x}" if not shift else f"({number}) & {mask:#x}"
    if issubclass(of, enum.Enum):
        scope[name] = _Codes(of)
        return f"{name}[{number}]"
    if of is int:
        return number
    scope[name] = of
    return f"{name}({number})"


def _encoder(cls: type[Layout], groups: list[_Group], little: bool) -> dict[str, list[str]]:
    items = []
    tooWide = []
    inner = []
    for group in groups:
        first = group.leaves[0]
        length = group.width // 8
        if first.kind == "layout":
            inner.append(f"        {first.reading}.encodeInto(buffer, offset + {first.offset // 8})")
        elif first.kind in ("bytes", "value"):
            item = first.reading + (".toBytes()" if first.kind == "value" else "")
            items.append(item)
            tooWide.append(f"len({item}) != {length}")
        else:
            shifts = [(leaf, _shift(leaf, group, little)) for leaf in group.leaves]
            terms = [f"{leaf.reading} << {shift}" if shift else leaf.reading for leaf, shift in shifts]
            item = " | ".join(terms)
            if group.format.endswith("s") or len(group.leaves) > 1:
                tooWide += [f"{leaf.reading} >> {leaf.field.width}" for leaf in group.leaves]
            if group.format.endswith("s"):
                order = "little" if little or first.field.little else "big"
                item = f"({item}).to_bytes({length}, {order!r})"
            items.append(item)
    tooWide[:0] = [f"len(self.{each.name}) != {each.count}" for each in cls.fields if each.count is not None]
    guard = [f"        if {' or '.join(tooWide)}:", "            raise ValueError"] if tooWide else []
    rescue = "    except (_error, ValueError, OverflowError, IndexError):"
    whole = f"        return _pack({', '.join(items)})"
    if inner:
        whole = f"        buffer = bytearray({cls.size}); self.encodeInto(buffer, 0); return bytes(buffer)"
    encode = ["def encode(self):", "    try:", *([] if inner else guard), whole]
    into = ["def encodeInto(self, buffer, offset=0):", "    try:", *guard]
    into += [f"        _packInto({', '.join(['buffer', 'offset', *items])})", *inner]
    return {
        "encode": [*encode, rescue, "        _badWrite(self, None, 0)"],
        "encodeInto": [*into, rescue, "        _badWrite(self, buffer, offset)"],
    }


def _badRead(cls: type[Layout], buffer: Buffer, offset: int, reason: Exception) -> WireError:
    there = len(buffer) - offset
    if there < cls.size:
        return WireError(cls.__name__, offset, f"it has {cls.size} bytes, and {max(there, 0)} are there")
    return WireError(cls.__name__, offset, str(reason))


def _badWrite(self: Layout, buffer: Buffer | None, offset: int) -> NoReturn:
    """Find out, slowly, what did not fit."""
    name = type(self).__name__
    for field in self.fields:
        value = getattr(self, field.name)
        values = (value,) if field.count is None else tuple(value)
        if field.count is not None and len(values) != field.count:
            raise WireError(name, field.offset // 8, f"{field.name} takes {field.count}, not {len(values)}")
        kind = _Leaf(field, None, 0).kind
        for one in values:
            if kind == "number" and one >> field.width:
                raise WireError(name, field.offset // 8, f"{field.name} has {field.width} bits, {one!r} more")
            raw = one.toBytes() if kind == "value" else one if kind == "bytes" else None
            if raw is not None and len(raw) * 8 != field.width:
                raise WireError(
                    name, field.offset // 8, f"{field.name} takes {field.width // 8} bytes: {one!r}"
                )
    room = 0 if buffer is None else len(buffer) - offset
    raise WireError(name, offset, f"it takes {self.size} bytes, and there is room for {max(room, 0)}")
