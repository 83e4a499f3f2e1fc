"""
RDMA for Twisted.
"""

from typing import Final

__version__: Final = "0.1.0"
"""The version of this package."""
