"""
Compiler of frequently used methods of layouts to straight-line code, for L{txrdma.kit.wire}.

It is imported when a method is first compiled; in a short connection these are only methods of its stream.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import Any

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
    def reading(self) -> str:
        return f"self.{self.field.name}" + ("" if self.index is None else f"[{self.index}]")


class _Group:
    """Leaves that share one item of a C{struct} format."""

    __slots__ = ("format", "leaves", "width")

    def __init__(self, format: str, width: int, leaves: tuple[_Leaf, ...]) -> None:
        self.format = format
        self.width = width
        self.leaves = leaves


_NATURAL = {8: "B", 16: "H", 32: "I", 64: "Q"}


def made(cls: type[Any], name: str, little: bool, defaults: Sequence[object], scope: dict[str, Any]) -> Any:
    """
    Compile a method of a layout.

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
    """Divide the leaves into items of a struct at the least cost; a native word for each is cheapest."""
    best: list[tuple[float, int, _Group | None]] = [(0.0, 0, None)]
    for end in range(1, len(leaves) + 1):
        chosen: tuple[float, int, _Group | None] = (float("inf"), 0, None)
        for begin in range(end - 1, -1, -1):
            run = tuple(leaves[begin:end])
            width = run[-1].offset + run[-1].field.width - run[0].offset
            alone = len(run) == 1
            if (not alone and width > 64) or (not alone and any(leaf.kind != "number" for leaf in run)):
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
        assert chosenGroup is not None  # verified by _checkRuns
        groups.append(chosenGroup)
        at = before
    return groups[::-1]


def _group(run: tuple[_Leaf, ...], width: int) -> tuple[_Group, float]:
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
    items = [f"v{number}" for number, group in enumerate(groups) if group.leaves[0].kind != "layout"]
    values: dict[str, list[str]] = {}
    prepare = []
    for number, group in enumerate(groups):
        if group.format.endswith("s") and group.leaves[0].kind == "number":
            prepare.append(f"        v{number} = _int(v{number}, {'little' if little else 'big'!r})")
        for leaf in group.leaves:
            shift = _shift(leaf, group, little)
            values.setdefault(leaf.field.name, []).append(_read(leaf, group, f"v{number}", shift, scope))
            if leaf.kind == "value" and hasattr(leaf.field.type, "wireSlot"):
                prepare += _filled(leaf, f"v{number}", scope)
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


def _filled(leaf: _Leaf, item: str, scope: dict[str, Any]) -> list[str]:
    """Return source lines that check the number of bytes, and store them: a third faster than a call."""
    of = leaf.field.type
    of.fromBytes(bytes(leaf.field.width // 8))  # raises if the declared length is wrong
    make, put = f"_of_{leaf.field.name}", f"_put_{leaf.field.name}"
    scope[make], scope[put] = of, vars(of)[of.wireSlot].__set__
    return [f"        made = _new({make})", f"        {put}(made, {item})", f"        {item} = made"]


def _shift(leaf: _Leaf, group: _Group, little: bool) -> int:
    into = leaf.offset - group.leaves[0].offset
    return into if little else group.width - into - leaf.field.width


def _read(leaf: _Leaf, group: _Group, item: str, shift: int, scope: dict[str, Any]) -> str:
    of = leaf.field.type
    name = f"_of_{leaf.field.name}"
    if leaf.kind == "layout":
        scope[name] = of.decode
        return f"{name}(buffer, offset + {leaf.offset // 8})"
    if leaf.kind == "bytes":
        return item
    if leaf.kind == "value":
        if hasattr(of, "wireSlot"):
            return item  # see _filled
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
                order = "little" if little else "big"
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
