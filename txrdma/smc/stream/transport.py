"""The transport of a stream over SMC-R, which behaves like Twisted's TCP transport."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from zope.interface import implementer

from twisted.internet.interfaces import IProtocol, IProtocolFactory, ITCPTransport, ITLSTransport
from twisted.internet.tcp import Connection, Server
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.interfaces import ISMCTransport
from txrdma.kit.connectionlog import describe
from txrdma.smc.common.names import prefixFor
from txrdma.smc.flow.flow import Flow
from txrdma.smc.stream import connectionstatus as status
from txrdma.smc.stream.stream import Stream
from txrdma.smc.terms.offer import Role
from txrdma.streams.transport import StreamTransport

if TYPE_CHECKING:
    from socket import socket

_log = Logger()


@implementer(ISMCTransport, ITCPTransport, ITLSTransport)
class SMCTransport(StreamTransport[Stream]):
    """
    The transport of a protocol over SMC-R: Twisted's interfaces to a L{Stream}.

    Written bytes are queued until the link flushes.

    @ivar sessionno: number of the connection among those that its port has accepted, for servers only. It is
        in no interface, but programs read this attribute of Twisted's TCP transports.
    """

    __slots__ = ("_factory", "_since", "sessionno")

    sessionno: int
    _flow: Flow

    def __init__(self, stream: Stream, protocol: IProtocol, tcp: Connection) -> None:
        self._factory: IProtocolFactory | None = None
        self._since = stream.link.scheduler.clock()
        if isinstance(tcp, Server):
            self.sessionno = tcp.sessionno
        super().__init__(stream, stream.flow, protocol, prefixFor(tcp, protocol))

    def __repr__(self) -> str:
        stream = self.stream
        return f"<SMCTransport {stream.role.value} {stream.state} to {describe(stream.peer)}>"

    # ITCPTransport

    def getTcpNoDelay(self) -> bool:
        """Return whether TCP_NODELAY is set on the underlying TCP connection, which carries no data."""
        return (tcp := self.stream.tcp) is not None and tcp.getTcpNoDelay()

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Set TCP_NODELAY on the underlying TCP connection; SMC-R itself never delays data."""
        if (tcp := self.stream.tcp) is not None:
            tcp.setTcpNoDelay(enabled)

    def getTcpKeepAlive(self) -> bool:
        return (tcp := self.stream.tcp) is not None and tcp.getTcpKeepAlive()

    def setTcpKeepAlive(self, enabled: bool) -> None:
        if (tcp := self.stream.tcp) is not None:
            tcp.setTcpKeepAlive(enabled)

    def getHandle(self) -> socket | None:
        """Return the socket of the TCP connection, for its options; None when the connection has ended."""
        return self.socket

    @property
    def socket(self) -> socket | None:
        """The socket of the TCP connection, also with TLS, which replaces C{getHandle}."""
        return None if (tcp := self.stream.tcp) is None else tcp.getHandle()

    @property
    def _tlsClientDefault(self) -> bool:
        return self.stream.role is Role.CLIENT

    # Events of the stream: see txrdma.streams.transport.StreamTransport

    def use(self, factory: IProtocolFactory) -> None:
        """Use a client's factory until C{connectionLost}; the TCP connection uses it, but may end before."""
        factory.doStart()
        self._factory = factory

    def begun(self) -> None:
        """Connect the protocol, which may write from now on."""
        status.register(self)
        super().begun()

    def ended(self, reason: Failure | None) -> None:
        """Disconnect the protocol for this reason; None: without a notification."""
        try:
            status.forget(self)
            if reason is not None:
                status.logEnd(self, reason, lambda: self.stream.link.scheduler.clock() - self._since)
        except Exception:
            _log.failure(
                "The end of an SMC-R connection could not be recorded ({transport!r})", transport=self
            )
        super().ended(reason)
        factory, self._factory = self._factory, None
        if factory is not None and reason is not None:
            try:
                factory.doStop()
            except BaseException:
                _log.failure("doStop of {factory!r} failed", factory=factory)

    # ISMCTransport

    @property
    def smc(self) -> status.SMCStatus:
        return status.SMCStatus(self.stream)


class PromptTransport(SMCTransport):
    """A transport that sends each write immediately, in a separate message (C{autocork=no})."""

    __slots__ = ()

    def write(self, data: bytes) -> None:
        """Send the data immediately."""
        super().write(data)
        self._hurry()

    def writeSequence(self, iovec: Iterable[bytes]) -> None:
        super().writeSequence(iovec)
        self._hurry()

    def _hurry(self) -> None:
        flow = self._flow
        if flow.isDirty and not (flow.hasProducer or flow.isEnding or flow.confirmsEach):
            self.stream.link.scheduler.postNow(flow)
