"""
A decorator by which ordinary classes may inherit from one that is compiled with the cores.

It is of C{mypy_extensions}, and only mypyc reads it: at run time it does nothing, here without that package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**_attributes):
        """Leave a class as it is."""
        return lambda kind: kind
