"""
Messages of the byte transfer layer for coroutines of asyncio, on any event loop, such as uvloop's.

Twisted's reactor for asyncio runs on the loop, for this connection only: the program starts no reactor. All
functions belong to the loop that runs when they are called.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Final, overload, TYPE_CHECKING, TypeVar

from twisted.internet.asyncioreactor import AsyncioSelectorReactor
from twisted.internet.defer import CancelledError, Deferred, maybeDeferred, TimeoutError
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP6ClientEndpoint
from twisted.internet.interfaces import IListeningPort
from twisted.internet.task import Clock
from twisted.internet.tcp import Connection as TCPConnection
from twisted.python.failure import Failure

from txrdma.btl.connections import ClientEndpoint, TIMEOUT
from txrdma.btl.connections import listen as listenAt
from txrdma.btl.ends import DeviceSpecs
from txrdma.btl.errors import MessageFailed, PeerLost
from txrdma.btl.groups.group import Group
from txrdma.btl.groups.joining import JOIN_SECONDS
from txrdma.btl.reactorthread import disconnect
from txrdma.btl.transport import BTLMessageTransport
from txrdma.error import InvalidRequest, Refused
from txrdma.messages.memory import octets
from txrdma.messages.protocol import MessageFactory, MessageProtocol

if TYPE_CHECKING:
    from txrdma.kit.buffers import AnyBuffer, WritableBuffer

Result = TypeVar("Result")

_NUMERIC: Final = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV

_reactors: dict[asyncio.AbstractEventLoop, Any] = {}


class _Reactor(AsyncioSelectorReactor):
    """
    Twisted's reactor on a loop that may be uvloop's.

    uvloop calls the reader of a descriptor with an error once, and never again. If a peer has sent something
    and reset the connection, that call reads the bytes, and another one the end.
    """

    def _readOrWrite(self, selectable: Any, read: bool) -> None:
        base: Any = super()
        base._readOrWrite(selectable, read)
        if read and isinstance(selectable, TCPConnection):
            # The list of readers is long, so it is searched last.
            while _isHungUp(selectable.fileno()) and selectable in base.getReaders():
                base._readOrWrite(selectable, read)


def _isHungUp(descriptor: int) -> bool:
    """Return whether both directions of a TCP socket have ended, as after a reset; False if it is closed."""
    if descriptor < 0:
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    # An error alone may be in the socket's queue of messages, where reading leaves it.
    return any(events & select.POLLHUP for _descriptor, events in poll.poll(0))


def currentReactor() -> Any:
    """
    Return Twisted's reactor on the running loop, which the first call makes.

    Close the connections and listeners that closed loops have left open.
    """
    loop = asyncio.get_running_loop()
    for each in list(_reactors):
        if each.is_closed() and (ended := _reactors.pop(each, None)) is not None:
            ended.callLater = Clock().callLater  # a closed loop raises an exception
            disconnect(ended)
    found = _reactors.get(loop)
    if found is None:
        found = _reactors[loop] = _Reactor(loop)
    return found


def future(deferred: Deferred[Result]) -> asyncio.Future[Result]:
    """Return a Deferred as a future of the running loop. Cancelling the future cancels the Deferred."""
    return deferred.asFuture(asyncio.get_running_loop())


async def _awaited(deferred: Deferred[Result], undo: Callable[[Result], object]) -> Result:
    """
    Wait for a Deferred.

    @param undo: called with the result if the task is cancelled before it resumes with it. A future that is
        cancelled cancels its Deferred only later, so the result may still arrive meanwhile.
    """
    arrived: list[Result] = []

    def arrive(result: Result) -> Result:
        arrived.append(result)
        return result

    try:
        return await future(deferred.addCallback(arrive))
    except asyncio.CancelledError:
        for each in arrived:
            undo(each)
        raise


class Connection:
    """
    A connection to a peer. As a context manager it closes the connection at the end.

    Methods are those of its C{transport}, where Deferreds are documented. Cancelling a coroutine cancels the
    Deferred.

    @ivar transport: the L{BTLMessageTransport}, for everything that needs no coroutine.
    """

    def __init__(self, transport: BTLMessageTransport) -> None:
        self.transport = transport
        self._ended: asyncio.Future[Failure] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"<Connection to {self.transport.getPeer()}>"

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def hasEnded(self) -> bool:
        return self._ended.done()

    def end(self, reason: Failure) -> None:
        """Report the end of the connection, as its protocol does."""
        if not self._ended.done():
            self._ended.set_result(reason)

    async def ended(self) -> Exception:
        """Wait for the end of the connection, and return C{ConnectionDone} or another reason."""
        found = (await asyncio.shield(self._ended)).value
        assert isinstance(found, Exception)
        return found

    async def close(self) -> None:
        """Close the connection when everything that was sent has arrived, and wait for its end."""
        self.transport.loseConnection()
        await self.ended()

    async def send(self, tag: int, data: AnyBuffer) -> None:
        """Send a message, and wait until the peer has it."""
        await future(self.transport.send(tag, data))

    def post(self, tag: int, data: AnyBuffer) -> None:
        """Send a message without waiting; after the end of the connection it is dropped."""
        self.transport.post(tag, data)

    async def sendMany(self, tag: int, messages: Iterable[AnyBuffer]) -> None:
        """Send many messages, and wait until the peer has all of them."""
        await future(self.transport.sendMany(tag, messages))

    async def ready(self) -> None:
        """Wait until little is queued."""
        await future(self.transport.ready())

    @overload
    async def receive(self, tag: int) -> bytes: ...

    @overload
    async def receive(self, tag: int, into: WritableBuffer) -> int: ...

    async def receive(self, tag: int, into: WritableBuffer | None = None) -> Any:
        """Return the next message of a tag, or its length if it is stored in a buffer."""
        if into is None:
            return await self._received(tag, self.transport.receive(tag), lambda found: [found])
        receiving = self.transport.receive(tag, into)
        return await self._received(tag, receiving, lambda length: [bytes(octets(into)[:length])])

    async def receiveMany(self, tag: int) -> list[bytes]:
        """Return all messages of a tag that have arrived, and at least one."""
        return await self._received(tag, self.transport.receiveMany(tag), lambda found: found)

    async def _received(
        self, tag: int, receiving: Deferred[Result], messages: Callable[[Result], list[bytes]]
    ) -> Result:
        """
        Wait for messages, which are not lost if the task is cancelled after they have arrived.

        @param messages: returns the messages from the result.
        """
        return await _awaited(receiving, lambda found: self.transport.giveBack(tag, messages(found)))

    async def call(self, tag: int, data: AnyBuffer = b"", timeout: float | None = None) -> bytes:
        """Call the peer's function for a tag, and return its answer; may raise C{asyncio.TimeoutError}."""
        try:
            return await future(self.transport.call(tag, data, timeout))
        except TimeoutError as error:
            raise asyncio.TimeoutError(f"no answer in {timeout} s") from error

    def answer(self, tag: int, function: Callable[[bytes], Awaitable[Any]]) -> None:
        """Set the coroutine function that answers calls with a tag; it is cancelled if the peer cancels."""

        def run(data: bytes) -> Deferred[Any]:
            answer: Deferred[Any] = Deferred.fromFuture(asyncio.ensure_future(function(data)))
            return answer.addErrback(_cancelled)

        self.transport.answer(tag, run)


def _cancelled(failure: Failure) -> Failure:
    """Return asyncio's exception of a cancelled coroutine as Twisted's, which is not logged."""
    return Failure(CancelledError()) if failure.check(asyncio.CancelledError) else failure


class _Protocol(MessageProtocol):
    """Makes the L{Connection} of a transport."""

    connection: Connection | None = None

    def __init__(self, made: Callable[[Connection], object]) -> None:
        self._made = made

    def connectionMade(self) -> None:
        self.connection = Connection(self.transport)
        self._made(self.connection)

    def connectionLost(self, reason: Failure) -> None:
        if self.connection is not None:  # else its exception was logged
            self.connection.end(reason)


class Server:
    """
    A listener. As a context manager it stops at the end; its connections remain.

    @ivar address: the address at which it listens, with C{host} and C{port}.
    """

    def __init__(self, serve: Callable[[Connection], Awaitable[object]]) -> None:
        self.address: Any
        self._serve = serve
        self._port: IListeningPort
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Server:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def stop(self) -> Deferred[Any]:
        """Stop listening without waiting for it."""
        return maybeDeferred(self._port.stopListening)

    async def close(self) -> None:
        """Stop listening."""
        await future(self.stop())

    def listens(self, port: IListeningPort) -> None:
        self._port, self.address = port, port.getHost()

    def connected(self, connection: Connection) -> None:
        """Serve a connection in a separate task."""
        task = asyncio.get_running_loop().create_task(self._run(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, connection: Connection) -> None:
        try:
            await self._serve(connection)
        except Exception as error:
            if connection.hasEnded and isinstance(error, MessageFailed):
                return  # the function has waited for a further message
            context = {"message": f"serving {connection} failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
        finally:
            connection.transport.loseConnection()


async def connect(host: str, port: int, device: DeviceSpecs = None) -> Connection:
    """
    Connect to a listener of the byte transfer layer.

    @param host: an IP address, or a name, whose addresses are tried in turn until there is a listener.
    @param device: a device, or several over which messages are striped: see L{DeviceSpecs}.
    @raise RDMAError: as the Deferred of L{txrdma.btl.connections.ClientEndpoint.connect}.
    @raise InvalidRequest: the name has no address, or the port is not a number from 0 to 65535.
    """
    if not 0 <= port <= 65535:
        raise InvalidRequest(f"a port is a number from 0 to 65535, not {port}")
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # names are encoded by IDNA
        raise InvalidRequest(f"no address of {host}: {error}") from error
    reactor, refusals = currentReactor(), []
    factory = MessageFactory(lambda: _Protocol(lambda connection: None))
    for family, _kind, _protocol, _name, address in found:
        numeric, _port = socket.getnameinfo(address, _NUMERIC)  # with the scope, as in fe80::1%eth0
        endpoint = TCP6ClientEndpoint if family == socket.AF_INET6 else TCP4ClientEndpoint
        stream = endpoint(reactor, numeric, port, TIMEOUT)
        try:
            connecting = ClientEndpoint(reactor, stream, device).connect(factory)
            protocol = await _awaited(connecting, lambda late: late.transport.abortConnection())
        except Refused as error:
            refusals.append(error)
        else:
            connection: Connection | None = protocol.connection
            if connection is None:
                raise PeerLost("an exception, which was logged, has prevented the start of the connection")
            return connection
    raise refusals[0]


async def listen(
    serve: Callable[[Connection], Awaitable[object]],
    host: str = "",
    port: int = 0,
    device: DeviceSpecs = None,
) -> Server:
    """
    Listen.

    @param serve: a coroutine function that is called with each connection, in a separate task. When it
        ends, the connection is closed; its exceptions go to the loop's exception handler, except
        L{MessageFailed} when the connection has ended.
    @param host: the IP address to listen at; empty is any IPv4 address.
    @param port: the TCP port; 0 is any free port.
    @param device: a device, or several over which messages are striped: see L{DeviceSpecs}.
    @raise CannotListenError: the port is in use.
    """
    server = Server(serve)
    factory = MessageFactory(lambda: _Protocol(server.connected))
    listening = listenAt(currentReactor(), port, factory, host, device)
    server.listens(await _awaited(listening, lambda late: late.stopListening()))
    return server


async def joinGroup(
    device: DeviceSpecs = None, interface: str = "127.0.0.1", timeout: float = JOIN_SECONDS
) -> Group:
    """
    Join the group that C{txrdma btl-run} has started: see L{Group.join}.

    Wait for its operations by L{future}: C{await aio.future(group.barrier())}.
    """
    joining = Group.join(currentReactor(), device=device, interface=interface, timeout=timeout)
    return await _awaited(joining, lambda late: late.close())
