"""
Plans of random simulations, stored as JSON that remains valid when a generator changes.

A plan is a frozen dataclass of numbers, strings, enumerations, tuples and other dataclasses. A seed yields a
different plan when its generator draws in another order or with other probabilities; a stored plan stays the
same. A new field of a plan needs a default with which older stored plans run as before.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, MISSING
from enum import Enum
from pathlib import Path
from random import Random
from types import NoneType, UnionType
from typing import Any, cast, Final, get_args, get_origin, get_type_hints, TypeVar, Union

_T = TypeVar("_T")
_WIDTH: Final = 110


class Misfit(ValueError):
    """Raised when a stored plan no longer fits its generator; the message names the value."""


@dataclass(frozen=True)
class StoredPlan:
    """
    A plan in a file, which tests run.

    @ivar found: the fault that the plan has revealed, or what it covers, in one sentence.
    @ivar counted: what must happen in its simulation: names of its counts that are above zero.
    """

    generator: str
    found: str
    plan: Any
    counted: tuple[str, ...] = ()

    def write(self, path: Path) -> None:
        """Write the plan to a file, and create the file's folder if it is missing."""
        path.parent.mkdir(parents=True, exist_ok=True)
        content: dict[str, Any] = {"generator": self.generator, "found": self.found}
        if self.counted:
            content["counted"] = list(self.counted)
        content["plan"] = encodePlan(self.plan)
        path.write_text(_formatted(content) + "\n", encoding="utf-8")


def readPlan(path: Path, kinds: Mapping[str, type]) -> StoredPlan:
    """
    Read a plan from a file.

    @param kinds: classes of plans, by the names of their generators.
    @raise Misfit: the plan does not fit its generator.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    kind = kinds.get(content["generator"])
    if kind is None:
        raise Misfit(f"{path}: there is no generator {content['generator']!r}")
    try:
        plan: Any = decodePlan(kind, content["plan"])
    except Misfit as error:
        raise Misfit(f"{path}: {error}") from None
    return StoredPlan(content["generator"], content["found"], plan, tuple(content.get("counted", ())))


def encodePlan(value: object) -> Any:
    """Convert a plan, or a part of one, to values that JSON can represent."""
    if isinstance(value, Enum):
        return value.name
    if is_dataclass(value):
        return {each.name: encodePlan(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, tuple):
        return [encodePlan(each) for each in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"a plan cannot contain {value!r}")


def decodePlan(kind: type[_T], raw: Any) -> _T:
    """
    Convert a result of C{encodePlan} to a value of the class C{kind}.

    @raise Misfit: the value does not fit the class.
    """
    return cast(_T, _decoded(kind, raw, "plan"))


def _decoded(kind: Any, raw: Any, name: str) -> object:
    if get_origin(kind) in (Union, UnionType):
        if raw is None and NoneType in get_args(kind):
            return None
        (kind,) = (each for each in get_args(kind) if each is not NoneType)
    if get_origin(kind) is tuple:
        return _decodedTuple(get_args(kind), raw, name)
    if isinstance(kind, type) and issubclass(kind, Enum):
        if raw not in kind.__members__:
            raise Misfit(f"{name} is {raw!r}, which is not a {kind.__name__}")
        return kind[raw]
    if is_dataclass(kind):
        return _decodedFields(cast(type, kind), raw, name)
    if kind is float and type(raw) is int:
        return float(raw)
    if type(raw) is not kind:
        raise Misfit(f"{name} is {raw!r}, not {kind.__name__}")
    return cast(object, raw)


def _decodedTuple(kinds: tuple[Any, ...], raw: Any, name: str) -> tuple[object, ...]:
    if not isinstance(raw, list):
        raise Misfit(f"{name} is {raw!r}, not a list")
    if kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(raw)
    if len(raw) != len(kinds):
        raise Misfit(f"{name} has {len(raw)} values, not {len(kinds)}")
    return tuple(
        _decoded(kind, each, f"{name}[{number}]")
        for number, (kind, each) in enumerate(zip(kinds, raw, strict=True))
    )


def _decodedFields(kind: type, raw: Any, name: str) -> object:
    if not isinstance(raw, dict):
        raise Misfit(f"{name} is {raw!r}, not a {kind.__name__}")
    hints = get_type_hints(kind)
    known = {each.name: each for each in fields(kind)}
    for each in raw:
        if each not in known:
            raise Misfit(f"{name}.{each} is not known to {kind.__name__}")
    for each in known.values():
        if each.name not in raw and each.default is MISSING:
            raise Misfit(f"{name}.{each.name} is missing: the generator draws it now")
    return kind(**{key: _decoded(hints[key], value, f"{name}.{key}") for key, value in raw.items()})


def _formatted(value: Any, indent: int = 0) -> str:
    """Encode as JSON, with each value on one line if it fits, and several short ones on a line."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) + indent <= _WIDTH or not isinstance(value, (dict, list)):
        return line
    inner = " " * (indent + 1)
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {_formatted(each, indent + 1)}" for key, each in value.items()]
    else:
        parts = [_formatted(each, indent + 1) for each in value]
    lines = [parts[0]]
    for part in parts[1:]:
        joined = f"{lines[-1]}, {part}"
        if "\n" in joined or len(joined) + indent > _WIDTH or part.startswith("{"):
            lines.append(part)
        else:
            lines[-1] = joined
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n" + ",\n".join(inner + each for each in lines) + f"\n{' ' * indent}{closing}"


class _Recorded(Random):
    given: Iterator[float] = iter(())

    def random(self) -> float:
        """Return the next given number; after the last one, a random number of the seed."""
        given = next(self.given, None)
        return super().random() if given is None else given


def noiseAfter(first: Sequence[float], seed: str) -> Random:
    """Make a generator whose C{random} returns the given numbers first, then random numbers of the seed."""
    noise = _Recorded(seed)
    noise.given = iter(first)
    return noise
