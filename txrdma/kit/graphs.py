"""Breadth-first search of graphs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Item = TypeVar("Item", bound=Hashable)
_Value = TypeVar("_Value")


def distances(
    starts: Iterable[Item], following: Callable[[Item], Iterable[Item]], most: int | None = None
) -> dict[Item, int]:
    """
    Return the distance of each reachable item, nearest first; the starts have distance 0.

    @param following: returns the successors of an item.
    @param most: largest distance; None for no limit.
    """
    return _reached(
        dict.fromkeys(starts, 0), following, lambda distance: None if distance == most else distance + 1
    )


def origins(starts: Iterable[Item], following: Callable[[Item], Iterable[Item]]) -> dict[Item, Item]:
    """
    Return the nearest start of each reachable item, nearest first; that of a start is itself.

    @param following: returns the successors of an item.
    """
    return _reached({item: item for item in starts}, following, lambda origin: origin)


def _reached(
    found: dict[Item, _Value],
    following: Callable[[Item], Iterable[Item]],
    beyond: Callable[[_Value], _Value | None],
) -> dict[Item, _Value]:
    """
    Add the items that can be reached, each with C{beyond} of the value of the item before it.

    @param beyond: returns None at an item beyond which the search does not go.
    """
    waiting = deque(found)
    while waiting:
        item = waiting.popleft()
        value = beyond(found[item])
        if value is None:
            continue
        for each in following(item):
            if each not in found:
                found[each] = value
                waiting.append(each)
    return found
