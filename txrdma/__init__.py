"""RDMA for Twisted."""

from typing import Final

__version__: Final = "1.0.0rc1"
"""The version of this package."""
