"""
Dask's communication over the byte transfer layer: addresses C{btl://host:port}.

Dask finds L{BTLBackend} by the entry point C{distributed.comm.backends}. A message of Dask is a list of
frames. Its first message here has the number of frames, their lengths, and the short frames; each long frame
follows in pieces, which are received directly into their final buffers.

Peers trust each other, as Dask's peers do over TCP: they unpickle what they receive.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from struct import pack, Struct
from typing import Any, Final

try:
    import dask
    from distributed.comm.addressing import parse_host_port, unparse_host_port
    from distributed.comm.core import BaseListener, Comm, CommClosedError, Connector
    from distributed.comm.tcp import BaseTCPBackend
    from distributed.comm.utils import ensure_concrete_host, from_frames, to_frames
    from distributed.protocol.utils import host_array
    from distributed.utils import ensure_memoryview
except ImportError as error:
    raise ImportError("txrdma.btl.dask needs distributed: pip install 'txrdma[dask]'") from error

from twisted.internet.error import CannotListenError

from txrdma.btl import aio
from txrdma.btl.aio import Connection
from txrdma.btl.errors import MessageFailed
from txrdma.error import RDMAError, WireError

PREFIX: Final = "btl://"

SHORT: Final = 64 << 10
"""Length of the longest frame that is copied into the first message."""

MOST_SHORT: Final = 4 << 20
"""Largest total length of the frames in the first message; further ones are treated as long frames."""

PIECE: Final = 4 << 20
"""Length of a piece of a long frame: the window of a tag."""

MOST_FRAMES: Final = 1 << 20
"""Maximum number of frames of a received message."""

CLOSE_SECONDS: Final = 10.0
"""Seconds in which the peer must receive all messages before a connection is closed."""

_FIRST, _PIECE = 1, 2  # tags
_COUNT: Final = Struct(">I")


def encode(frames: list[memoryview]) -> tuple[bytes, list[memoryview]]:
    """Return the first message with frames, and the long frames, which are not in it."""
    lengths = [each.nbytes for each in frames]
    short, isLong = 0, []
    for length in lengths:
        isLong.append(length > SHORT or short + length > MOST_SHORT)
        short += 0 if isLong[-1] else length
    head = pack(f">I{len(frames)}Q{len(frames)}?", len(frames), *lengths, *isLong)
    within = [each for each, long in zip(frames, isLong, strict=True) if not long]
    return b"".join((head, *within)), [each for each, long in zip(frames, isLong, strict=True) if long]


def decode(message: bytes) -> list[memoryview | int]:
    """
    Return the frames of a first message, with the lengths of long frames in place of these.

    @raise WireError: the lengths contradict each other.
    """
    count = _COUNT.unpack_from(message)[0] if len(message) >= _COUNT.size else MOST_FRAMES + 1
    head = Struct(f">I{count}Q{count}?") if count <= MOST_FRAMES else None
    if head is None or head.size > len(message):
        raise WireError("a message of Dask", 0, "the number of frames is wrong")
    values = head.unpack_from(message)
    data, begin = memoryview(message), head.size
    found: list[memoryview | int] = []
    for length, isLong in zip(values[1 : count + 1], values[count + 1 :], strict=True):
        if isLong:
            found.append(length)
            continue
        # As over TCP, frames can be changed, and an array does not keep the memory of other frames.
        found.append(memoryview(bytearray(data[begin : begin + length])))
        begin += length
    if begin != len(message):
        raise WireError(
            "a message of Dask", begin, f"its frames end there, but the message at {len(message)}"
        )
    return found


class BTL(Comm):
    """A connection between two processes of Dask."""

    def __init__(self, connection: Connection, peer: str, deserialize: bool = True) -> None:
        """@param peer: the address of the peer."""
        super().__init__(deserialize=deserialize)
        host = connection.transport.getHost()
        self._connection, self._peer_addr = connection, peer  # names that distributed.comm.core uses
        self._local_addr = _address(host)
        self._received: deque[bytes] = deque()
        self._isClosed = False

    @property
    def local_address(self) -> str:
        return self._local_addr

    @property
    def peer_address(self) -> str:
        return self._peer_addr

    async def read(self, deserializers: Any = None) -> Any:
        """Return the next message; raise C{CommClosedError} if the connection has ended."""
        if self._isClosed:
            raise CommClosedError()
        try:
            frames = await self._readFrames()
        except (MessageFailed, WireError) as error:
            self.abort()
            raise CommClosedError(f"in {self!r}: {error}") from error
        except BaseException:
            self.abort()  # a part of the message may have been received
            raise
        try:
            return await from_frames(
                frames,
                deserialize=self.deserialize,
                deserializers=deserializers,
                allow_offload=self.allow_offload,
            )
        except EOFError as error:
            self.abort()
            raise CommClosedError(f"in {self!r}: a message is truncated") from error

    async def _readFrames(self) -> list[memoryview]:
        if not self._received:
            self._received.extend(await self._connection.receiveMany(_FIRST))
        frames: list[memoryview] = []
        for each in decode(self._received.popleft()):
            if isinstance(each, int):
                frame = host_array(each)
                for begin in range(0, each, PIECE):
                    piece = frame[begin : begin + PIECE]
                    if await self._connection.receive(_PIECE, piece) != len(piece):
                        raise WireError("a frame of Dask", begin, "a piece has the wrong length")
                frames.append(frame)
            else:
                frames.append(each)
        return frames

    async def write(self, msg: Any, serializers: Any = None, on_error: Any = "message") -> int:
        """Send a message, and return its length; raise C{CommClosedError} if the connection has ended."""
        if self._isClosed:
            raise CommClosedError()
        context = {"sender": self.local_info, "recipient": self.remote_info, **self.handshake_options}
        frames = await to_frames(
            msg,
            allow_offload=self.allow_offload,
            serializers=serializers,
            on_error=on_error,
            context=context,
            frame_split_size=sys.maxsize,  # the receiver would have to join the parts of a frame
        )
        views = [ensure_memoryview(each) for each in frames]
        first, long = encode(views)
        try:
            if long:
                await self._connection.ready()
            self._post(_FIRST, first)
            for frame in long:
                for begin in range(0, len(frame), PIECE):
                    self._post(_PIECE, frame[begin : begin + PIECE])
        except MessageFailed as error:
            self.abort()
            raise CommClosedError(f"in {self!r}: {error}") from error
        except BaseException:
            self.abort()  # a part of the message may have been sent
            raise
        return sum(each.nbytes for each in views)

    def _post(self, tag: int, data: bytes | memoryview) -> None:
        if self._connection.transport.disconnecting:
            raise MessageFailed("the connection has ended")
        self._connection.post(tag, data)

    async def close(self) -> None:
        """
        Close the connection when the peer has received everything, or after some seconds.

        Like C{tcp://}, this does not wait for the process of a peer that has received everything: it may be
        busy for seconds, and a nanny kills a worker that does not end in time.
        """
        self._isClosed = True
        if self._connection.transport.isIdle:
            self.abort()
        try:
            await asyncio.wait_for(self._connection.close(), CLOSE_SECONDS)
        except asyncio.TimeoutError:
            self.abort()

    def abort(self) -> None:
        self._isClosed = True
        self._connection.transport.abortConnection()

    def closed(self) -> bool:
        """Return whether this end has closed, or the peer has and its messages were read."""
        hasEnded = self._connection.hasEnded
        if hasEnded and not self._received:
            arrived = self._connection.transport.receiveMany(_FIRST)
            arrived.addCallbacks(self._received.extend, lambda _: None)
        return self._isClosed or (hasEnded and not self._received)


def _address(address: Any) -> str:
    return PREFIX + unparse_host_port(address.host, address.port)


def _device() -> str | None:
    found: str | None = dask.config.get("distributed.comm.btl.device", None)
    return found


def _checkEncryption(address: str, arguments: dict[str, Any]) -> None:
    if arguments.get("require_encryption"):
        raise RuntimeError(f"Dask's configuration requires encryption, which {PREFIX}{address} does not have")


class BTLConnector(Connector):
    """Connects to addresses with the scheme C{btl}."""

    async def connect(self, address: str, deserialize: bool = True, **arguments: Any) -> BTL:
        """Connect to an address without its scheme; raise C{CommClosedError} if that fails."""
        _checkEncryption(address, arguments)
        host, port = parse_host_port(address)
        try:
            connection = await aio.connect(host, port, _device())
        except RDMAError as error:
            raise CommClosedError(f"cannot connect to {PREFIX}{address}: {error}") from error
        return BTL(connection, PREFIX + address, deserialize)


class BTLListener(BaseListener):
    """Listens at an address. C{prefix}: the scheme of addresses, which Dask reads."""

    prefix = PREFIX

    def __init__(
        self,
        address: str,
        handle: Callable[[Comm], Awaitable[None]],
        deserialize: bool = True,
        allow_offload: bool = True,
        default_host: str | None = None,
        default_port: int = 0,
        **arguments: Any,
    ) -> None:
        super().__init__()
        _checkEncryption(address, arguments)
        self._host, self._port = parse_host_port(address, default_port)
        self._handle, self._defaultHost = handle, default_host
        self._deserialize, self._mayOffload = deserialize, allow_offload
        self._server: aio.Server | None = None
        self._hasStopped = False

    async def start(self) -> None:
        """Start to listen; raise C{OSError} if that fails."""
        try:
            self._server = await aio.listen(self._serve, self._host, self._port, _device())
        except (CannotListenError, RDMAError) as error:
            raise OSError(f"cannot listen at {PREFIX}{self._host}:{self._port}: {error}") from error

    async def _serve(self, connection: Connection) -> None:
        comm = BTL(connection, _address(connection.transport.getPeer()), self._deserialize)
        comm.allow_offload = self._mayOffload
        if self._hasStopped:
            return  # closes the connection
        try:
            await self.on_connection(comm)
        except CommClosedError:
            return
        await self._handle(comm)
        await connection.ended()

    def stop(self) -> None:
        """Stop listening. Connections remain."""
        server, self._server, self._hasStopped = self._server, None, True
        if server is not None:
            server.stop()

    def _bound(self) -> Any:
        if self._server is None:
            raise ValueError("the listener was not started")
        return self._server.address

    @property
    def listen_address(self) -> str:
        return _address(self._bound())

    @property
    def contact_address(self) -> str:
        """The address at which other processes reach this listener."""
        bound = self._bound()
        return PREFIX + unparse_host_port(ensure_concrete_host(bound.host, self._defaultHost), bound.port)


class BTLBackend(BaseTCPBackend):
    """The backend of addresses C{btl://}; hosts and ports are those of TCP."""

    _connector_class = BTLConnector
    _listener_class = BTLListener
