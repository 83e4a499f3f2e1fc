"""Hypothesis strategies for layouts, made from their declarations."""

from __future__ import annotations

import enum
from typing import Any, TypeVar

from hypothesis import strategies as st

from txrdma.kit.wire import Code, Layout
from txrdma.kit.wirefield import Field

T = TypeVar("T", bound=Layout)


def layouts(layout: type[T], **chosen: st.SearchStrategy[Any]) -> st.SearchStrategy[T]:
    """Return a strategy for any value of C{layout}, including reserved bits; C{chosen} overrides fields."""
    values = {field.name: chosen.pop(field.name, _values(field)) for field in layout.fields}
    if chosen:
        raise TypeError(f"{layout.__name__} has no {', '.join(chosen)}")
    return st.builds(layout, **values)


def _values(field: Field) -> st.SearchStrategy[Any]:
    one = _one(field)
    return one if field.count is None else st.tuples(*[one] * field.count)


def _one(field: Field) -> st.SearchStrategy[Any]:
    of: Any = field.type
    if issubclass(of, Layout):
        return layouts(of)
    if of is bytes or hasattr(of, "fromBytes"):
        raw = st.binary(min_size=field.width // 8, max_size=field.width // 8)
        return raw if of is bytes else raw.map(of.fromBytes)
    numbers = st.integers(0, (1 << field.width) - 1)
    if of is bool:
        return st.booleans()
    if issubclass(of, enum.IntEnum) and not issubclass(of, Code):
        return st.sampled_from([member for member in of if member >> field.width == 0])
    return numbers if of is int else numbers.map(of)
