"""
The byte transfer layer: reliable messages over unreliable datagrams, one queue pair for all peers.

C{connect} and C{listen} are those of L{txrdma.btl.connections}, C{answers} of L{txrdma.btl.requests},
C{Group} of L{txrdma.btl.groups.group}.

Modules, lowest first:

 - without I/O: C{wire}, the layout of packets; L{core <txrdma.btl.core>}: state machines of peers and modules
 - with I/O: C{channels}, C{module}; C{introductions}; C{receivebuffers}, the reliable queue pairs for long
   messages, and when datagrams carry these; C{probes}; C{lifeline}, the TCP connection of a peer;
   C{requests}; C{memory}; C{batches}; C{inbox}, messages that the program has not taken, and their limits;
   C{outbox}, tagged messages that wait for their window; C{objects}; C{transport}; C{connections}, the
   endpoints; C{stream}; L{groups <txrdma.btl.groups>}; C{aio}, for asyncio; C{dask}; C{reactorthread}, a
   reactor in a separate thread; C{torch}
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txrdma.kit.lazynames import lazyNames

if TYPE_CHECKING:
    from txrdma.btl.connections import connect as connect
    from txrdma.btl.connections import listen as listen
    from txrdma.btl.groups.group import Group as Group
    from txrdma.btl.requests import answers as answers

# Imported on demand: the cores here do not need Twisted.
__getattr__, __dir__ = lazyNames(
    __name__,
    {
        "txrdma.btl.connections": "connect listen",
        "txrdma.btl.groups.group": "Group",
        "txrdma.btl.requests": "answers",
    },
)
