"""Scapy's RoCE layer, as a reference."""

from __future__ import annotations

import importlib
from typing import Any

from twisted.trial.unittest import SkipTest

_module: Any
try:
    _module = importlib.import_module("scapy.contrib.roce")
except ImportError:
    _module = None


def scapyRoCE() -> Any:  # scapy has no types
    """Return scapy's RoCE module; skip the test if scapy is not installed."""
    if _module is None:
        raise SkipTest("scapy is not installed")
    return _module
