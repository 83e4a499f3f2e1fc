"""
Connections by the communication manager of RDMA (InfiniBand Architecture vol. 1, chapter 12).

Each part imports only those before it:

 1. C{layouts}: messages on the wire.
 2. C{core}: state machines and their dispatcher, without I/O.
 3. C{errors}, C{terms}, C{interfaces}: terms of connections, and the interfaces of managers and transports.
 4. C{status}, C{manager}, C{rdmacm}: txrdma's own manager, and the kernel's through librdmacm.
 5. C{connections}: adapters, transports and endpoints of message connections and datagrams.
 6. C{strings}, C{rping}: endpoint strings, and the protocol of librdmacm's rping.
 7. C{rsocket}: byte streams over message connections.

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
