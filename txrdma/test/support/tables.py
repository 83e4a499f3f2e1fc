"""
Tables of rich, as text.
"""

from __future__ import annotations

import io

from twisted.trial.unittest import SkipTest


def shown(*tables: object) -> str:
    """Return tables as text."""
    try:
        from rich.console import Console
    except ImportError:
        raise SkipTest("rich is not installed: the extra cli brings it") from None
    out = io.StringIO()
    for table in tables:
        Console(file=out, width=200, color_system=None).print(table)
    return out.getvalue()
