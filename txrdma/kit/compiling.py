"""Instructions for mypyc, which have no effect in pure Python."""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**_instructions: Any) -> Any:
        """Return a decorator that returns the class."""
        return lambda kind: kind
