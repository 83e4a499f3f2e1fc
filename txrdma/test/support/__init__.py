"""
What several test modules share: fakes, peers and simulated hosts.
"""

from pathlib import Path
from typing import Final

CHECKOUT: Final = Path(__file__).resolve().parents[3]
VECTORS: Final = CHECKOUT / "txrdma" / "test" / "vectors"
"""Recorded packets and answers that this project did not make."""
