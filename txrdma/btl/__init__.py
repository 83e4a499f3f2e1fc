"""
The byte transfer layer: reliable messages over unreliable datagrams, one queue pair for all peers.

C{connect} and C{listen} are those of L{txrdma.btl.connections}, C{answers} of L{txrdma.btl.requests},
C{Group} of L{txrdma.btl.groups.group}.

Protocol, without I/O:

 - C{wire}: the layout of packets.
 - L{core <txrdma.btl.core>}: state machines of peers and modules.

Modules and channels, with I/O:

 - C{errors}: what only this layer raises.
 - C{channels}: queue pairs for datagrams; when a failed one is reset (C{RESET_SECONDS}).
 - C{module}: ports of a device on a reactor: depths of queues (C{DATA_DEPTHS}), the timer, and when a module
   that raises exceptions is given up (C{MOST_INTERRUPTIONS}).
 - C{status}: counters of the modules of a process, and its status socket.

Connections:

 - C{ends}: devices of a connection, and TCP endpoints.
 - C{introductions}: what both ends send over TCP: addresses, interfaces, versions, frames.
 - C{receivebuffers}: the reliable queue pairs for long messages: sizes of receive buffers, how long messages
   wait for one (C{HOLD_SECONDS}), and when datagrams carry them after losses (C{LOSSY}, C{PAUSE_SECONDS}).
 - C{probes}: probes of paths, which prove the peer's address and find the MTU (C{MOST_TRIES}).
 - C{lifeline}: the TCP connection of a peer, its steps from introduction to end, their time limits
   (C{PROBE_SECONDS}, C{EXCHANGE_SECONDS}), and its keepalive (C{TCP_KEEP_ALIVE}).
 - C{memory}: memory that ends share, and the limit of reads (C{MOST_GETS}).
 - C{requests}: calls of the peer's functions: their number and bytes (C{MOST_CALLS}, C{MOST_CALL_BYTES}),
   answers and cancelling.
 - C{batches}: buffers and results of many messages that are sent together.
 - C{inbox}: messages that the program has not taken: most bytes and tags (C{MOST_UNRECEIVED}, C{MOST_TAGS}),
   beyond which the peer is disconnected.
 - C{outbox}: tagged messages that wait for their window (L{txrdma.btl.core.flow}).
 - C{objects}: Python objects as messages.
 - C{transport}: the transport of a connection: tags (C{LARGEST_TAG}), and when producers are paused
   (C{FULL}).
 - C{connections}: the endpoints, time limits (C{TIMEOUT}, C{INTRODUCTION_SECONDS}), and limits of clients
   that have not introduced themselves (C{MOST_WAITING}, C{MOST_OPENING}).

Uses of connections:

 - L{stream <txrdma.btl.stream>}: byte streams (C{btl:}).
 - L{groups <txrdma.btl.groups>}: collective operations.
 - C{aio}: connections for coroutines of asyncio.
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
