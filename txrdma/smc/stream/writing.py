"""
The write of a stream's transport, which every message of an application passes.

It stands by itself to be compiled with the cores; the rest is L{SMCTransport
<txrdma.smc.stream.transport.SMCTransport>}'s.
"""

from __future__ import annotations

from twisted.internet.interfaces import IPullProducer, IPushProducer

from txrdma.smc.common.inheriting import mypyc_attr
from txrdma.smc.stream._flow import Flow


def mustBeBytes(data: object) -> None:
    """Refuse what is no byte string, in the words of L{twisted.internet.abstract}, by a C{TypeError}."""
    if not isinstance(data, bytes):
        raise TypeError("Data must be bytes")


@mypyc_attr(allow_interpreted_subclasses=True)
class Writing:
    """
    The side of a transport to which an application writes.

    @ivar producer: what produces for the connection, if there is anything.
    """

    __slots__ = ("_flow", "producer")

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self.producer: IPushProducer | IPullProducer | None = None

    def write(self, data: bytes) -> None:
        """Write, some time soon and in order."""
        if data.__class__ is not bytes:
            mustBeBytes(data)
        flow = self._flow
        if data and flow.isOpen:
            flow.pending.append(data)
            flow.backlog += len(data)
            if not flow.isDirty:  # as in C{Flow.touch}
                flow.isDirty = True
                poster = flow.poster
                poster.dirty.append(flow)
                if not poster.isBusy:
                    poster.schedule()
            if self.producer is not None:
                self._hasWritten()

    def _hasWritten(self) -> None:
        """Pause the producer, if more than enough waits."""
        raise NotImplementedError
