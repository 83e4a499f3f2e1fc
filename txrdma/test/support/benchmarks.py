"""
Shared by tests of the benchmarks: the checkout, and the reason to skip if matplotlib is missing.
"""

from __future__ import annotations

from importlib.util import find_spec

MISSING = "" if find_spec("matplotlib") else "matplotlib is not installed: the extra bench brings it"
