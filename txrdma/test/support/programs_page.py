"""
The examples in docs/programs.md, for the tests that run them.
"""

from __future__ import annotations

import re
from pathlib import Path
from unittest import SkipTest

import txrdma

PAGE = Path(txrdma.__file__).parents[1] / "docs" / "programs.md"


def blocks() -> list[str]:
    """Return the Python examples of the page."""
    if not PAGE.exists():
        raise SkipTest("not a checkout")
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
