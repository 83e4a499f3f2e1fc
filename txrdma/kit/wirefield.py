"""A field of a wire layout, as L{txrdma.kit.wire} declares it."""

from __future__ import annotations

import builtins
import enum
from collections.abc import Callable, Sequence
from typing import Any

from txrdma.kit.values import frozen


@frozen(eq=False)
class Field:
    """
    One field of a layout, for tests, dumpers and documentation.

    @ivar count: number of elements of an array; None for other fields.
    @ivar type: type of the field, or of one element of an array.
    @ivar kind: C{"number"}, C{"bytes"}, C{"value"} (of a class with C{fromBytes}) or C{"layout"}.
    @ivar width: number of bits of the field, or of one element of an array.
    @ivar offset: number of bits from the beginning of the layout.
    @ivar shown: formats the value as readable text; None to use C{str}.
    @ivar flags: names of the bits, if the field is a number whose bits have names; None otherwise.
    """

    name: str
    type: Any
    kind: str
    width: int
    offset: int
    count: int | None
    reserved: bool
    shown: Callable[[Any], str] | None = None
    flags: builtins.type[enum.IntFlag] | None = None

    def offsets(self) -> Sequence[int]:
        """Return the offsets of all elements, in bits from the beginning of the layout."""
        return (
            (self.offset,)
            if self.count is None
            else range(self.offset, self.offset + self.count * self.width, self.width)
        )
