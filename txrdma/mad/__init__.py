"""
Management datagrams (MADs): the 256-byte messages by which InfiniBand fabrics are managed.

Names that most programs need can be imported from here; each is loaded when it is first used. Attributes are
in modules by class: L{smp <txrdma.mad.layouts.smp>}, L{sa <txrdma.mad.layouts.sa>} and others.

Its parts, lowest first:

 - L{layouts <txrdma.mad.layouts>}: attributes and frames, as bytes.
 - L{errors <txrdma.mad.errors>}: errors of calls, and the refusal that handlers raise.
 - L{paths <txrdma.mad.paths>}: parses names of ports (LID, GID, directed route), and makes paths for
   datagrams.
 - L{core <txrdma.mad.core>}: the protocols of calls and of RMPP, without I/O.
 - L{ports <txrdma.mad.ports>}: management ports, which send and receive datagrams.

Calls and requests:

 - C{rpcs}: the calls of the specification as methods, and the options of a call.
 - C{portwatch}: detects that a port is lost, returns, or has another SM or address; intervals of its polls
   (C{WATCH_SECONDS}, C{RETURN_SECONDS}).
 - C{requests}: which servers get a received request, and registration of their classes with a port.
 - C{agent}: makes calls on a port and a reactor.
 - C{server}: calls handlers for requests of peers, and answers them, in limits (C{MOST_PENDING},
   C{MOST_PENDING_BYTES}, C{ANSWER_SECONDS}); drops requests repeated before their answer, passes
   repeated notices on once.
 - C{subscription}: subscribes to notices at the SA, and renews that (C{RENEWAL_SECONDS}).
 - C{generators}: work as generators, in python-rdma's style.
 - C{tasks}: coroutines that wait for Deferreds.
 - C{schedule}: coroutines over an agent, with a limit of outstanding calls (C{MAX_OUTSTANDING}).

Uses of calls:

 - C{resolvers}: finds the path to a port, by the SA, a table, or IP over RoCE.
 - C{satransactor}: makes C{SubnGet} calls by records of the SA.
 - C{registers}: registers of NVIDIA's devices: cables, serial numbers.
 - C{vendor}: ping and system statistics of hosts, with their servers; revisions of Mellanox devices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txrdma.kit.lazynames import lazyNames

if TYPE_CHECKING:
    from txrdma.iba.path import IBDRPath as IBDRPath
    from txrdma.iba.path import IBPath as IBPath
    from txrdma.iba.path import MADEndPort as MADEndPort
    from txrdma.mad.agent import MADAgent as MADAgent
    from txrdma.mad.core.frames import Keys as Keys
    from txrdma.mad.errors import MADClassError as MADClassError
    from txrdma.mad.errors import MADError as MADError
    from txrdma.mad.errors import MADFailure as MADFailure
    from txrdma.mad.errors import MADRefusal as MADRefusal
    from txrdma.mad.errors import MADTimeoutError as MADTimeoutError
    from txrdma.mad.errors import MADTransferError as MADTransferError
    from txrdma.mad.paths import parseTarget as parseTarget
    from txrdma.mad.paths import toLID as toLID
    from txrdma.mad.paths import toSA as toSA
    from txrdma.mad.ports import availableMADPorts as availableMADPorts
    from txrdma.mad.ports import openMADPort as openMADPort
    from txrdma.mad.resolvers import IPPathResolver as IPPathResolver
    from txrdma.mad.resolvers import SAPathResolver as SAPathResolver
    from txrdma.mad.resolvers import StaticPathResolver as StaticPathResolver
    from txrdma.mad.satransactor import SATransactor as SATransactor
    from txrdma.mad.schedule import MADSchedule as MADSchedule
    from txrdma.mad.server import MADServer as MADServer
    from txrdma.mad.subscription import Subscription as Subscription

__getattr__, __dir__ = lazyNames(
    __name__,
    {
        "txrdma.iba.path": "IBDRPath IBPath MADEndPort",
        "txrdma.mad.core.frames": "Keys",
        "txrdma.mad.agent": "MADAgent",
        "txrdma.mad.errors": "MADClassError MADError MADFailure MADRefusal MADTimeoutError MADTransferError",
        "txrdma.mad.subscription": "Subscription",
        "txrdma.mad.paths": "parseTarget toSA toLID",
        "txrdma.mad.ports": "availableMADPorts openMADPort",
        "txrdma.mad.resolvers": "IPPathResolver SAPathResolver StaticPathResolver",
        "txrdma.mad.satransactor": "SATransactor",
        "txrdma.mad.schedule": "MADSchedule",
        "txrdma.mad.server": "MADServer",
    },
)
