"""
The byte transfer layer: reliable messages over unreliable datagrams, one queue pair for all peers.

C{connect} and C{listen} are those of L{txrdma.btl.connections}, C{answers} of L{txrdma.btl.requests}.

Modules, lowest first:

 - without I/O: C{wire}, the layout of packets; L{core <txrdma.btl.core>}: state machines of peers and modules
 - with I/O: C{channels} and C{module}; C{introductions}; C{probes}; C{lifeline}, the TCP connection of a
 peer;
   C{memory}; C{batches}, C{inbox} and C{outbox}, tagged messages; C{requests}; C{objects};
   C{transport}; C{connections}, the endpoints; C{stream}.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name in ("connect", "listen", "answers"):
        from txrdma.btl import connections, requests  # not at the top: the cores here do not need Twisted

        return getattr(requests if name == "answers" else connections, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
