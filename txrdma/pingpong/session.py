"""
Client and server of measurements: the client requests tests, and the server takes part within its limits.

L{txrdma.pingpong.bootstrap} describes their messages.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from twisted.internet.defer import CancelledError, Deferred, TimeoutError
from twisted.internet.interfaces import IAddress, IStreamClientEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import deferLater
from twisted.logger import Logger

from txrdma import __version__
from txrdma.error import InvalidRequest, RDMAError, Refused, WireError
from txrdma.iba.verbs import QPKind, Status
from txrdma.interfaces import IVerbsDevice
from txrdma.pingpong.activity import Activity
from txrdma.pingpong.bootstrap import (
    BootstrapHello,
    Connect,
    Connected,
    Done,
    Open,
    Opened,
    Ready,
    Run,
    ServerResult,
    VERSION,
)
from txrdma.pingpong.conversation import Conversation, ConversationLost
from txrdma.pingpong.engine import answering, asking
from txrdma.pingpong.link import MeasuredLink, RequestFailed, TestSide
from txrdma.pingpong.measurement import Measurement
from txrdma.pingpong.plan import LinkSettings, Measure, Test, Transfer

_log = Logger()

PORT: Final = 18516
"""Default TCP port of servers: the next after that of the C{ibv_rc_pingpong} protocol."""

_RESULT_SECONDS: Final = 60.0
_PARTING_SECONDS: Final = 1.0
_REASON_SECONDS: Final = 0.3

_PEER_GONE: Final = frozenset((Status.RETRY_EXC_ERR, Status.WR_FLUSH_ERR))
"""What requests report when the peer has closed its queue pair; the peer's own reason says more."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a server: bytes per message, and outstanding requests."""

    size: int = 64 << 20
    depth: int = 4096


def software() -> str:
    """Return the name and version of this software."""
    return f"txrdma {__version__}"


def within(settings: LinkSettings, limits: Limits, device: IVerbsDevice, port: int) -> LinkSettings:
    """Return the settings, reduced to what the device and the limits allow."""
    most = device.limits
    size = min(settings.size, limits.size, most.maxMemoryRegionLength // 2)
    mtu = device.portAttributes(port).activeMTU.bytes
    if settings.kind is QPKind.UD:
        size = min(size, mtu)
    # Twice as many receives are posted, and both share a completion queue.
    requests = min(most.maxQueuePairRequests // 2, most.maxCompletionQueueDepth // 3)
    depth = max(1, min(settings.depth, limits.depth, requests))
    inline = min(settings.inline, most.maxInline)
    return replace(settings, size=size, depth=depth, mtu=min(settings.mtu or mtu, mtu), inline=inline)


class _End:
    """One end of a conversation, its link, and the test that runs on it."""

    def __init__(self, side: TestSide, conversation: Conversation) -> None:
        self._side = side
        self._conversation = conversation
        self._link: MeasuredLink | None = None
        self._activity: Activity | None = None
        conversation.broken.addCallback(self._broken)

    def _dropLink(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _leave(self, activity: Activity) -> None:
        """Stop an activity, and ignore its result."""
        activity.stop()
        activity.done.addErrback(lambda failure: None)
        self._activity = None

    def _broken(self, error: Exception) -> Exception:
        if self._activity is not None:
            self._activity.failed(error)
        return error


class Client(_End):
    """
    The end that requests tests.

    @ivar settings: settings of the link as agreed with the server.
    @ivar unfinished: partial measurement of a test that has failed.
    """

    def __init__(self, side: TestSide, conversation: Conversation, device: IVerbsDevice) -> None:
        super().__init__(side, conversation)
        self._device, self._isClosed = device, False
        self.unfinished: Measurement | None = None
        self.peer = ""
        self.settings = LinkSettings()

    async def greet(self) -> None:
        """Exchange C{hello} messages with the server."""
        self._conversation.send(BootstrapHello(software=software()))
        hello = await self._conversation.receive(BootstrapHello)
        _checkVersion(hello)
        self.peer = hello.software

    async def open(self, settings: LinkSettings) -> LinkSettings:
        """
        Open a link for tests, instead of the previous one, with at most the settings that both devices allow.

        @return: settings of the link.
        @raise RDMAError: the link could not be opened.
        """
        conversation = self._conversation
        self._dropLink()
        conversation.send(Open(within(settings, Limits(size=settings.size), self._device, self._side.port)))
        opened = await conversation.receive(Opened)
        self._link = link = MeasuredLink(self._side, self._device, opened.settings)
        link.connect(opened.there)
        conversation.send(Connect(link.here))
        await conversation.receive(Connected)
        self.settings = replace(opened.settings, mtu=link.mtu)
        return self.settings

    async def run(self, test: Test) -> Measurement:
        """Run a test, which L{interrupt} can end early."""
        conversation, link = self._conversation, self._link
        assert link is not None  # opened before
        checkFit(test, link.settings)
        self._activity = activity = asking(link, test)
        try:
            conversation.send(Run(test))
            await conversation.receive(Ready)
            activity.start()
            measurement = await activity.done
            conversation.send(Done(activity.messages, measurement.interrupted))
            result = await conversation.receive(ServerResult, seconds=_RESULT_SECONDS)
            if test.measure is Measure.BIDIRECTIONAL:
                await activity.conclude(result.sent)
        except RDMAError as error:
            if activity.measurement.messages:
                activity.measurement.interrupted = True
                self.unfinished = activity.measurement
            raise await self._reason(error) from error
        finally:
            self._leave(activity)
        return _joined(measurement, activity, result)

    def progress(self) -> int:
        """Return the number of completed messages of the current test."""
        return 0 if self._activity is None else self._activity.messages

    def interrupt(self) -> None:
        """Interrupt the current test, which then returns a partial measurement."""
        if self._activity is not None:
            self._activity.interrupt()

    def close(self) -> None:
        """Close the link, the conversation and the device. Repeated calls have no effect."""
        self._dropLink()
        self._conversation.end(ConversationLost("closed"), shouldReport=False)
        if not self._isClosed:
            self._isClosed = True
            self._side.close(self._device)

    async def _reason(self, error: RDMAError) -> RDMAError:
        """Return the cause of a failure: a queue pair often fails before the conversation's end is known."""
        await deferLater(self._side.reactor, _REASON_SECONDS)
        gone = self._conversation.error
        self._conversation.end(error)
        if isinstance(error, RequestFailed) and error.status in _PEER_GONE and isinstance(gone, Refused):
            return gone
        return gone if isinstance(gone, ConversationLost) else error


def _joined(measurement: Measurement, activity: Activity, result: ServerResult) -> Measurement:
    """Combine the measurements of both ends."""
    test = measurement.test
    measurement.wrong += result.wrong
    if test.measure is Measure.BIDIRECTIONAL:
        lost = activity.messages - result.received + result.sent - activity.received
        measurement.messages += result.messages
        measurement.nanoseconds = max(measurement.nanoseconds, result.nanoseconds)
        measurement.peak += result.peak
    else:
        lost = activity.messages - result.received
    if test.transfer is Transfer.UD and test.measure is not Measure.LATENCY:
        measurement.lost = max(0, lost)
        measurement.messages = max(0, measurement.messages - measurement.lost)
    return measurement


def _checkVersion(hello: BootstrapHello) -> None:
    if hello.version != VERSION:
        raise Refused(f"the peer has version {hello.version} of the protocol, not {VERSION}")


async def connect(endpoint: IStreamClientEndpoint, side: TestSide) -> Client:
    """
    Connect to a server, and open the local device.

    @raise RDMAError: the server refuses the client or is lost, or the device cannot be opened.
    """
    factory = Factory.forProtocol(lambda: Conversation(side.reactor))
    conversation = await endpoint.connect(factory)
    assert isinstance(conversation, Conversation)
    try:
        device = side.open(_localAddress(conversation))
    except BaseException as error:
        conversation.end(ConversationLost(str(error)))
        raise
    client = Client(side, conversation, device)
    try:
        await client.greet()
    except BaseException:
        client.close()
        raise
    return client


def _localAddress(conversation: Conversation) -> object:
    """Return the local address of the transport; None if it has none, such as that of a child process."""
    try:
        return None if conversation.transport is None else conversation.transport.getHost()
    except NotImplementedError:
        return None


class PingpongServer(Factory):
    """Factory that serves one client at a time, and refuses others meanwhile."""

    noisy = False

    def __init__(
        self,
        side: TestSide,
        limits: Limits | None = None,
        begun: Callable[[str], None] = lambda client: None,
        idle: Callable[[Exception | None], None] = lambda error: None,
    ) -> None:
        """
        @param begun: called with the host of each client that is served.
        @param idle: called when a client has left, with the error or None.
        """
        self._side = side
        self._limits = limits or Limits()
        self._begun = begun
        self._idle = idle
        self._serving: Deferred[None] | None = None
        self._conversation: Conversation | None = None

    @property
    def isServing(self) -> bool:
        """Whether a client is being served."""
        return self._serving is not None

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        conversation = Conversation(self._side.reactor)
        conversation.opened.addCallback(self._opened)
        return conversation

    async def close(self) -> None:
        """End the conversation with the client, and wait until it has ended."""
        if self._conversation is not None and self._serving is not None:
            over: Deferred[None] = Deferred()
            self._serving.addCallback(over.callback)
            self._conversation.end(ConversationLost("the server is stopped"))
            await over

    def _opened(self, conversation: Conversation) -> None:
        if self.isServing:
            conversation.end(Refused("another client is measuring; try again later"))
            return
        self._conversation = conversation
        self._serving = Deferred.fromCoroutine(self._serve(conversation))
        self._serving.addErrback(lambda failure: _log.failure("while serving", failure))

    async def _serve(self, conversation: Conversation) -> None:
        why: Exception | None = None
        try:
            await _Service(self._side, self._limits, conversation, self._begun).serve()
        except (ConversationLost, CancelledError):
            pass
        except Exception as error:
            why = error
            if not isinstance(error, (RDMAError, ValueError)):
                _log.failure("while serving")
            conversation.end(error)
            with suppress(TimeoutError):  # the error is sent before this process may exit
                await conversation.gone.addTimeout(_PARTING_SECONDS, self._side.reactor)
        finally:
            self._serving = self._conversation = None
            self._idle(why)


class _Service(_End):
    """Service for one client."""

    def __init__(
        self, side: TestSide, limits: Limits, conversation: Conversation, begun: Callable[[str], None]
    ) -> None:
        super().__init__(side, conversation)
        self._limits = limits
        self._begun = begun

    async def serve(self) -> None:
        """Serve until the conversation ends."""
        conversation = self._conversation
        hello = await conversation.receive(BootstrapHello)
        conversation.send(BootstrapHello(software=software()))
        _checkVersion(hello)
        assert conversation.transport is not None  # a message was received
        self._begun(str(getattr(conversation.transport.getPeer(), "host", "a client")))
        device = self._side.open(_localAddress(conversation))
        try:
            while True:
                asked = await conversation.receive(Open, Run, seconds=None)
                if isinstance(asked, Open):
                    await self._open(device, asked.settings)
                elif isinstance(asked, Run):
                    await self._run(asked.test)
        except Exception as error:
            conversation.end(error)
            # The client receives the reason before its queue pair fails.
            with suppress(TimeoutError):
                await conversation.gone.addTimeout(_PARTING_SECONDS, self._side.reactor)
            raise
        finally:
            self._dropLink()
            self._side.close(device)

    async def _open(self, device: IVerbsDevice, wanted: LinkSettings) -> None:
        conversation = self._conversation
        self._dropLink()
        settings = within(wanted, self._limits, device, self._side.port)
        self._link = link = MeasuredLink(self._side, device, settings)
        link.broken = self._linkBroken
        conversation.send(Opened(settings, link.here))
        link.connect((await conversation.receive(Connect)).there)
        conversation.send(Connected())

    async def _run(self, test: Test) -> None:
        conversation, link = self._conversation, self._link
        if link is None:
            raise WireError("pingpong message", 0, "a test before a link is open")
        checkFit(test, link.settings)
        self._activity = activity = answering(link, test)
        activity.start()
        conversation.send(Ready())
        try:
            done = await conversation.receive(Done, seconds=None)
            if done.interrupted:
                activity.interrupt()
            seen = await activity.conclude(done.messages)
        finally:
            self._leave(activity)
        counts = (activity.received, activity.messages, seen.messages)
        conversation.send(ServerResult(*counts, seen.nanoseconds, seen.peak, seen.wrong))

    def _linkBroken(self, error: Exception) -> None:
        """End the conversation if the link fails in a test; after it this happens when a client leaves."""
        if self._activity is not None:
            self._conversation.end(error)


def checkFit(test: Test, settings: LinkSettings) -> None:
    """Raise L{InvalidRequest} if a link is not suitable for a test."""
    if test.transfer.kind is not settings.kind or test.size > settings.size:
        raise InvalidRequest(f"the link does not support {test.transfer.value} of {test.size} bytes")
    if (test.transfer is Transfer.ATOMIC and not settings.atomics) or (test.check and not settings.check):
        raise InvalidRequest("the link does not support such a test")
