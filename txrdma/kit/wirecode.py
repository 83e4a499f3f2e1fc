"""
Compiler of frequently used methods of layouts to straight-line code, for L{txrdma.kit.wire}.

Theory of operation. C{struct} reads and writes whole bytes, but fields are bits. So adjacent fields are
grouped into items of one C{struct} format: a number of 8, 16, 32 or 64 bits, or else bytes. A method handles
all items by one call, and gets the fields by shifts and masks. For the DETH in L{txrdma.kit.wire}::

    def decode(cls, buffer, offset=0):
        try:
            if offset < 0:
                raise ValueError('the offset is negative')
            (v0, v1,) = _unpack(buffer, offset)  # of Struct(">II")
            self = _new(cls)
            self.qkey = v0
            self.reserved = v1 >> 24
            self.source = v1 & 0xffffff
            return self
        except (_error, ValueError, OverflowError) as reason:
            raise _badRead(cls, buffer, offset, reason) from None

    def encode(self):
        try:
            if self.reserved >> 8 or self.source >> 24:
                raise ValueError
            return _pack(self.qkey, self.reserved << 24 | self.source)
        except (_error, ValueError, OverflowError, IndexError):
            _badWrite(self, None, 0)

This module is imported when a method is first compiled.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import Any

from txrdma.kit.values import frozen
from txrdma.kit.wirefield import Field


class _Codes(dict[int, Any]):
    """Maps numbers to members of an enumeration, as fast as a dict for known numbers."""

    def __init__(self, kind: type[enum.Enum]) -> None:
        super().__init__({int(m.value): m for m in kind.__members__.values()})
        self._kind = kind

    def __missing__(self, number: int) -> Any:
        member = self._kind(number)
        if isinstance(member, enum.Flag):  # cached: there are 65536 at most
            self[number] = member
        return member


class _Leaf:
    """A field, or one element of an array."""

    __slots__ = ("field", "index", "kind", "offset")

    def __init__(self, field: Field, index: int | None) -> None:
        self.field = field
        self.index = index
        self.offset = field.offset + (index or 0) * field.width
        self.kind = field.kind

    @property
    def expression(self) -> str:
        """Source that reads the value from C{self}."""
        return f"self.{self.field.name}" + ("" if self.index is None else f"[{self.index}]")


@frozen(eq=False)
class _Group:
    """Leaves that share one item of a C{struct} format; C{width} is its number of bits."""

    format: str
    width: int
    leaves: tuple[_Leaf, ...]

    @property
    def isNumberInBytes(self) -> bool:
        """Whether the leaves are bits of a number that C{struct} has no format for."""
        return self.format.endswith("s") and self.leaves[0].kind == "number"


_NATURAL = {8: "B", 16: "H", 32: "I", 64: "Q"}


def compileMethod(
    cls: type[Any], name: str, little: bool, defaults: Sequence[object], scope: dict[str, Any]
) -> Any:
    """
    Compile a method of a layout, and return it.

    @param name: C{"__init__"}, C{"decode"}, C{"encode"} or C{"encodeInto"}.
    @param little: whether the layout is little-endian.
    @param defaults: default values of the fields, for C{__init__}.
    @param scope: globals of the code: C{_badRead}, which returns an error, and C{_badWrite}, which raises it.
    """
    scope |= {"_new": object.__new__, "_int": int.from_bytes, "_error": struct.error}
    scope |= {"bytes": bytes, "bytearray": bytearray}
    if name == "__init__":
        source = _constructor(cls.fields, defaults, scope)
    else:
        groups = _grouped(
            [
                _Leaf(field, index if field.count is not None else None)
                for field in cls.fields
                for index in range(1 if field.count is None else field.count)
            ]
        )
        packer = struct.Struct(("<" if little else ">") + "".join(group.format for group in groups))
        scope |= {"_unpack": packer.unpack_from, "_pack": packer.pack, "_packInto": packer.pack_into}
        isRead = name == "decode"
        source = _decoder(groups, little, scope) if isRead else _encoder(cls, groups, little)[name]
    # Only source that is generated here is executed.
    exec(compile("\n".join(source), f"<layout {cls.__module__}.{cls.__qualname__}>", "exec"), scope)  # noqa: S102
    return scope[name]


def _grouped(leaves: Sequence[_Leaf]) -> list[_Group]:
    """
    Divide the leaves into items of a struct at the least cost; a native word for each is cheapest.

    This is dynamic programming: C{best} has, for each number of leaves, the cost of the best division, where
    its last group begins, and that group.
    """
    best: list[tuple[float, int, _Group | None]] = [(0.0, 0, None)]
    for end in range(1, len(leaves) + 1):
        chosen: tuple[float, int, _Group | None] = (float("inf"), 0, None)
        for begin in range(end - 1, -1, -1):
            run = tuple(leaves[begin:end])
            width = run[-1].offset + run[-1].field.width - run[0].offset
            alone = len(run) == 1
            if not alone and (width > 64 or any(leaf.kind != "number" for leaf in run)):
                break
            if run[0].offset % 8 or width % 8:
                continue  # not whole bytes
            group, cost = _group(run, width)
            if best[begin][0] + cost < chosen[0]:
                chosen = (best[begin][0] + cost, begin, group)
        best.append(chosen)
    groups = []
    end = len(leaves)
    while end:
        _cost, end, lastGroup = best[end]
        assert lastGroup is not None  # verified by _checkRuns
        groups.append(lastGroup)
    return groups[::-1]


def _group(run: tuple[_Leaf, ...], width: int) -> tuple[_Group, float]:
    """Return a group of leaves that have so many bits together, and its cost, relative to a plain number."""
    first = run[0]
    if first.kind == "layout":
        return _Group(f"{width // 8}x", width, run), 1.0
    if first.kind == "number" and width in _NATURAL:
        return _Group(_NATURAL[width], width, run), 1.0 + (2.0 * len(run) if len(run) > 1 else 0.0)
    return _Group(f"{width // 8}s", width, run), (1.0 if first.kind != "number" else 6.0 + 2.0 * len(run))


def _constructor(fields: Sequence[Field], defaults: Sequence[object], scope: dict[str, Any]) -> list[str]:
    parameters = []
    for number, (field, default) in enumerate(zip(fields, defaults, strict=True)):
        scope[f"_default{number}"] = default
        parameters.append(f"{field.name}=_default{number}")
    head = f"def __init__(self, *, {', '.join(parameters)}):" if parameters else "def __init__(self):"
    return [head, *(f"    self.{field.name} = {field.name}" for field in fields), "    pass"]


def _decoder(groups: list[_Group], little: bool, scope: dict[str, Any]) -> list[str]:
    """Return the source lines of C{decode}."""
    items = [f"v{number}" for number, group in enumerate(groups) if group.leaves[0].kind != "layout"]
    values: dict[str, list[str]] = {}
    prepare = []
    for number, group in enumerate(groups):
        if group.isNumberInBytes:
            prepare.append(f"        v{number} = _int(v{number}, {'little' if little else 'big'!r})")
        for leaf in group.leaves:
            shift = _shift(leaf, group, little)
            values.setdefault(leaf.field.name, []).append(_decoded(leaf, group, f"v{number}", shift, scope))
            if leaf.kind == "value" and hasattr(leaf.field.type, "wireSlot"):
                prepare += _storeInSlot(leaf, f"v{number}", scope)
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


def _storeInSlot(leaf: _Leaf, item: str, scope: dict[str, Any]) -> list[str]:
    """Return source lines that store bytes in a value's C{wireSlot}, a third faster than C{fromBytes}."""
    of = leaf.field.type
    of.fromBytes(bytes(leaf.field.width // 8))  # raises if the declared length is wrong
    make, put = f"_of_{leaf.field.name}", f"_put_{leaf.field.name}"
    scope[make], scope[put] = of, vars(of)[of.wireSlot].__set__
    return [f"        made = _new({make})", f"        {put}(made, {item})", f"        {item} = made"]


def _shift(leaf: _Leaf, group: _Group, little: bool) -> int:
    """Return the number of bits below a leaf in the number of its group."""
    into = leaf.offset - group.leaves[0].offset
    return into if little else group.width - into - leaf.field.width


def _decoded(leaf: _Leaf, group: _Group, item: str, shift: int, scope: dict[str, Any]) -> str:
    """Return an expression for the value of a leaf, whose group was unpacked into the variable C{item}."""
    of = leaf.field.type
    name = f"_of_{leaf.field.name}"
    if leaf.kind == "layout":
        scope[name] = of.decode
        return f"{name}(buffer, offset + {leaf.offset // 8})"
    if leaf.kind == "bytes":
        return item
    if leaf.kind == "value":
        if hasattr(of, "wireSlot"):
            return item  # see _storeInSlot
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


def _encoder(cls: type[Any], groups: list[_Group], little: bool) -> dict[str, list[str]]:
    """Return the source lines of C{encode} and C{encodeInto}."""
    items = []  # what is packed
    wrong = [f"len(self.{each.name}) != {each.count}" for each in cls.fields if each.count is not None]
    nested = []
    for group in groups:
        first = group.leaves[0]
        if first.kind == "layout":
            nested.append(f"        {first.expression}.encodeInto(buffer, offset + {first.offset // 8})")
        elif first.kind == "number":
            items.append(_packedNumber(group, little))
            if group.isNumberInBytes or len(group.leaves) > 1:  # else C{struct} checks the width
                wrong += [f"{leaf.expression} >> {leaf.field.width}" for leaf in group.leaves]
        else:
            item = first.expression + (".toBytes()" if first.kind == "value" else "")
            items.append(item)
            wrong.append(f"len({item}) != {group.width // 8}")
    check = [f"        if {' or '.join(wrong)}:", "            raise ValueError"] if wrong else []
    encode = ["def encode(self):", "    try:"]
    if nested:
        encode += [f"        buffer = bytearray({cls.size})", "        self.encodeInto(buffer, 0)"]
        encode += ["        return bytes(buffer)"]
    else:
        encode += [*check, f"        return _pack({', '.join(items)})"]
    into = ["def encodeInto(self, buffer, offset=0):", "    try:", *check]
    into += [f"        _packInto({', '.join(['buffer', 'offset', *items])})", *nested]
    error = "    except (_error, ValueError, OverflowError, IndexError):"
    return {
        "encode": [*encode, error, "        _badWrite(self, None, 0)"],
        "encodeInto": [*into, error, "        _badWrite(self, buffer, offset)"],
    }


def _packedNumber(group: _Group, little: bool) -> str:
    """Return an expression for the number, or its bytes, that contains all leaves of a group."""
    shifts = [(leaf.expression, _shift(leaf, group, little)) for leaf in group.leaves]
    number = " | ".join(f"{value} << {shift}" if shift else value for value, shift in shifts)
    if not group.isNumberInBytes:
        return number
    return f"({number}).to_bytes({group.width // 8}, {'little' if little else 'big'!r})"
