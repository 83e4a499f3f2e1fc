"""
Code shared by test modules: fakes, peers and simulated hosts.
"""

from pathlib import Path
from typing import Final

CHECKOUT: Final = Path(__file__).resolve().parents[3]
VECTORS: Final = CHECKOUT / "txrdma" / "test" / "vectors"
"""Recorded packets and answers that were not made by txrdma."""
