"""
Connections by the communication manager of RDMA (InfiniBand Architecture vol. 1, chapter 12).

Each part imports only those before it, lowest first:

 - C{layouts}: messages on the wire.
 - C{core}: state machines and their dispatcher, without I/O.
 - C{errors}: errors of communication management.
 - C{terms}: what two ends agree on: lengths, credits, the greeting; defaults and C{RANGES}, such as
   retransmissions of CM messages (C{maxCMRetries}) and the keepalive interval (C{KEEPALIVE}).
 - C{interfaces}: interfaces of managers, connections and protocols.
 - C{claims}: service IDs that processes claim where they share queue pair 1.
 - C{status}: counters of a process's managers, and its status socket.
 - C{connection}: one connection as applications see it.
 - C{manager}: txrdma's own manager, on management datagrams: the usual response timeout
   (C{RESPONSE_TIMEOUT}), retries of SIDR_REQs (C{RETRIES}).
 - C{rdmacm}: the kernel's manager, through librdmacm.
 - C{connections}: adapters, transports and endpoints of message connections and datagrams.
 - C{strings}: the keys of C{rdma:}, C{ib:} and C{sidr:} endpoint strings.
 - C{rping}: the protocol of librdmacm's rping.
 - C{rsocket}: byte streams over message connections.

Applications need only this module: the names below are loaded on first use, since Twisted imports this
package whenever it looks for plugins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txrdma.kit.lazynames import lazyNames

if TYPE_CHECKING:
    from txrdma.cm.connections.datagrams import DatagramClientEndpoint as DatagramClientEndpoint
    from txrdma.cm.connections.datagrams import DatagramGroupEndpoint as DatagramGroupEndpoint
    from txrdma.cm.connections.datagrams import DatagramProtocol as DatagramProtocol
    from txrdma.cm.connections.datagrams import DatagramServerEndpoint as DatagramServerEndpoint
    from txrdma.cm.connections.endpoints import IBClientEndpoint as IBClientEndpoint
    from txrdma.cm.connections.endpoints import IBServerEndpoint as IBServerEndpoint
    from txrdma.cm.connections.endpoints import RDMAClientEndpoint as RDMAClientEndpoint
    from txrdma.cm.connections.endpoints import RDMAServerEndpoint as RDMAServerEndpoint
    from txrdma.cm.connections.protocol import RDMAProtocol as RDMAProtocol
    from txrdma.cm.errors import PeerSilent as PeerSilent
    from txrdma.cm.errors import Rejected as Rejected
    from txrdma.cm.errors import Rejection as Rejection
    from txrdma.cm.errors import ServiceRefused as ServiceRefused
    from txrdma.cm.layouts.messages import RejectReason as RejectReason
    from txrdma.cm.terms import Terms as Terms

__getattr__, __dir__ = lazyNames(
    __name__,
    {
        "txrdma.cm.connections.datagrams": "DatagramClientEndpoint DatagramGroupEndpoint DatagramProtocol"
        " DatagramServerEndpoint",
        "txrdma.cm.connections.endpoints": "IBClientEndpoint IBServerEndpoint RDMAClientEndpoint"
        " RDMAServerEndpoint",
        "txrdma.cm.connections.protocol": "RDMAProtocol",
        "txrdma.cm.errors": "PeerSilent Rejected Rejection ServiceRefused",
        "txrdma.cm.layouts.messages": "RejectReason",
        "txrdma.cm.terms": "Terms",
    },
)
