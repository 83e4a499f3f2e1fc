"""
The byte transfer layer: reliable messages over unreliable datagrams, one queue pair for all peers.

C{connect} and C{listen} are those of L{txrdma.btl.connections}, C{answers} of L{txrdma.btl.requests},
C{Group} of L{txrdma.btl.groups.group}.

Protocol, without I/O:

 - C{wire}: the layout of packets.
 - L{core <txrdma.btl.core>}: state machines of peers and modules.

Modules and channels, with I/O:

 - C{errors}: what only this layer raises.
 - C{channels}: queue pairs for datagrams, and when a failed one is reset.
 - C{module}: ports of a device on a reactor: depths of queues, the timer, and when a module that raises
   exceptions is given up.
 - C{status}: counters of a process, and its status socket.

Connections:

 - C{ends}: devices of a connection, and TCP endpoints.
 - C{introductions}: what both ends send over TCP: addresses, interfaces, versions, frames.
 - C{receivebuffers}: the reliable queue pairs for long messages: sizes of receive buffers, and when datagrams
   carry these messages.
 - C{probes}: probes of paths, which prove the peer's address and find the MTU.
 - C{lifeline}: the TCP connection of a peer, its steps from introduction to end, and their time limits.
 - C{memory}: memory that ends share, and the limit of reads.
 - C{requests}: calls of the peer's functions: their number and bytes, answers and cancelling.
 - C{batches}: buffers and results of many messages that are sent together.
 - C{inbox}: messages that the program has not taken: largest number of bytes and of tags, beyond which the
   peer is disconnected.
 - C{outbox}: tagged messages that wait for their window (L{txrdma.btl.core.flow}).
 - C{objects}: Python objects as messages.
 - C{transport}: the transport of a connection: tags, and when producers are paused.
 - C{connections}: the endpoints, and limits of clients that have not introduced themselves.

Uses of connections:

 - L{stream <txrdma.btl.stream>}: byte streams (C{btl:}).
 - L{groups <txrdma.btl.groups>}: collective operations.
 - C{aio}: the same for asyncio.
 - C{dask}: Dask's communication.
 - C{reactorthread}: a reactor in a separate thread.
 - C{torch}: a backend of C{torch.distributed}.
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
