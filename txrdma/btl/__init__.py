"""
The byte transfer layer: reliable messages over unreliable datagrams, one queue pair for all peers.

C{connect} and C{listen} are those of L{txrdma.btl.connections}.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name in ("connect", "listen"):
        from txrdma.btl import connections  # not at the top: cores of this room need no Twisted

        return getattr(connections, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
