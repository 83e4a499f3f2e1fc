"""Dask's communication over C{btl://}, tested with the conversations of Dask's own tests of C{tcp://}."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Coroutine
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any
from unittest import SkipTest

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import WireError


def truncated() -> None:
    raise EOFError


class Truncated:
    """An object that cannot be unpickled, as if its end were missing."""

    def __reduce__(self) -> Any:
        return truncated, ()


class DaskCase(SynchronousTestCase):
    def setUp(self) -> None:
        try:
            self.core: Any = import_module("distributed.comm.core")
            self.module: Any = import_module("txrdma.btl.dask")
        except ImportError:
            raise SkipTest("distributed is not installed: the extra dask brings it") from None


class FrameTests(DaskCase):
    """First messages, without a connection."""

    def decoded(self, *frames: bytes) -> tuple[list[Any], list[bytes]]:
        first, long = self.module.encode([memoryview(each) for each in frames])
        return self.module.decode(first), [bytes(each) for each in long]

    def test_frames(self) -> None:
        """Short frames are in the message, many of them too; long frames only by their lengths."""
        long = bytes(self.module.SHORT + 1)
        self.assertEqual(self.decoded(b"ab", b"", long, b"c"), ([b"ab", b"", len(long), b"c"], [long]))
        self.assertEqual(self.decoded(), ([], []))
        frame = bytes(self.module.SHORT)
        most = self.module.MOST_SHORT // self.module.SHORT
        self.assertEqual(self.decoded(*[frame] * (most + 1)), ([frame] * most + [len(frame)], [frame]))

    def test_ownMemory(self) -> None:
        """A received frame does not keep the memory of other frames, as it may belong to an array."""
        frames, _long = self.decoded(b"header", b"ab", b"cdef")
        self.assertEqual([len(each.obj) for each in frames], [6, 2, 4])

    def test_writable(self) -> None:
        """Received frames can be changed, as over TCP."""
        ((frame,), _long) = self.decoded(b"ab")
        self.assertFalse(frame.readonly)

    def test_invalid(self) -> None:
        first, _long = self.module.encode([memoryview(b"ab")])
        most = struct.pack(">I", self.module.MOST_FRAMES + 1)
        for wrong in (b"", first[:3], first[:10], first[:-1], first + b"x", most + bytes(100)):
            self.assertRaises(WireError, self.module.decode, wrong)


class CommTests(DaskCase):
    """A listener and a connector on one loop."""

    slowBecause = "each test opens a device, and Dask is imported"

    def converse(
        self,
        handle: Callable[[Any], Coroutine[Any, Any, None]],
        main: Callable[[Any], Coroutine[Any, Any, None]],
        address: str = "btl://127.0.0.1",
    ) -> None:
        """
        Listen with a handler, connect, and call C{main} with the connection; wait for both.

        C{main} is called after the handler, as the listener would ignore a connection that is aborted before.
        """
        done: list[asyncio.Task[None]] = []

        async def handled(comm: Any) -> None:
            done.append(asyncio.ensure_future(handle(comm)))
            await asyncio.wait(done)

        async def play() -> None:
            async with self.core.listen(address, handled) as listener:
                comm = await self.core.connect(listener.contact_address, timeout=60)
                while not done:
                    await asyncio.sleep(0)
                await main(comm)
                await comm.close()
                await done[0]

        asyncio.run(asyncio.wait_for(play(), 60))

    async def echo(self, count: int, comm: Any) -> None:
        """Return messages to their sender, and close."""
        for _ in range(count):
            await comm.write(await comm.read())
        await comm.close()

    async def endsReading(self, comm: Any) -> None:
        """Read until the peer closes."""
        with self.assertRaises(self.core.CommClosedError):
            await comm.read()

    def test_entryPoint(self) -> None:
        """Dask finds the backend by its entry point."""
        (found,) = entry_points(group="distributed.comm.backends", name="btl")
        self.assertIs(found.load(), self.module.BTLBackend)
        registry: Any = import_module("distributed.comm.registry")
        self.assertIsInstance(registry.get_backend("btl"), self.module.BTLBackend)

    def test_messages(self) -> None:
        """Messages of all kinds and lengths arrive as they were; arrays can be changed."""
        numpy = import_module("numpy")
        serialize: Any = import_module("distributed.protocol").to_serialize
        arrays = [numpy.arange(count, dtype="f8") for count in (10, 10_000, 1_000_000)]

        async def main(comm: Any) -> None:
            for message in ({"op": "hello"}, ("x" * 100_000, 1, None), {"number": 2**63}, b"y" * 5_000_000):
                self.assertGreater(await comm.write(message), 0)
                self.assertEqual(await comm.read(), message)
            for array in arrays:
                await comm.write({"x": serialize(array)})
                found = (await comm.read())["x"]
                self.assertTrue(numpy.array_equal(found, array))
                found += 1

        self.converse(partial(self.echo, 4 + len(arrays)), main)

    def test_manyInFlight(self) -> None:
        """Messages that are written without reading arrive in order, short and long ones."""
        count = 200

        async def main(comm: Any) -> None:
            for number in range(count):
                await comm.write({"number": number, "data": b"x" * (300_000 if number % 50 == 0 else 10)})
            self.assertEqual(await comm.read(), "all")

        async def handle(comm: Any) -> None:
            numbers = [(await comm.read())["number"] for _ in range(count)]
            self.assertEqual(numbers, list(range(count)))
            await comm.write("all")

        self.converse(handle, main)

    def test_peerCloses(self) -> None:
        """What a peer has written before it closes is read; then reading and writing fail."""

        async def handle(comm: Any) -> None:
            await comm.read()
            await comm.write("last")
            await comm.close()

        async def main(comm: Any) -> None:
            await comm.write("first")
            while not comm._connection.hasEnded:
                await asyncio.sleep(0)
            self.assertFalse(comm.closed())
            self.assertEqual(await comm.read(), "last")
            self.assertTrue(comm.closed())  # so a pool of connections does not use it again
            await self.endsReading(comm)
            self.assertTrue(comm.closed())
            with self.assertRaises(self.core.CommClosedError):
                await comm.write("more")

        self.converse(handle, main)

    def test_writeAfterEnd(self) -> None:
        async def main(comm: Any) -> None:
            while not comm._connection.hasEnded:
                await asyncio.sleep(0)
            with self.assertRaises(self.core.CommClosedError):
                await comm.write("more")
            self.assertTrue(comm.closed())

        self.converse(partial(self.echo, 0), main)

    def test_abort(self) -> None:
        """Aborting and closing are noticed by the peer, and can be repeated."""

        async def main(comm: Any) -> None:
            comm.abort()
            comm.abort()
            self.assertTrue(comm.closed())
            await self.endsReading(comm)

        self.converse(self.endsReading, main)

    def test_cancelledRead(self) -> None:
        """A cancelled read closes the connection, because a part may have been received."""

        async def main(comm: Any) -> None:
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(comm.read(), 0.05)
            self.assertTrue(comm.closed())

        self.converse(self.endsReading, main)

    def test_truncated(self) -> None:
        """A message whose end is missing closes the connection, as over TCP."""
        for each in ("comm.utils", "protocol.core"):
            self.patch(logging.getLogger(f"distributed.{each}"), "disabled", True)
        serialize: Any = import_module("distributed.protocol").to_serialize

        async def handle(comm: Any) -> None:
            await comm.write({"x": serialize(Truncated())})
            await self.endsReading(comm)

        async def main(comm: Any) -> None:
            await self.endsReading(comm)
            self.assertTrue(comm.closed())

        self.converse(handle, main)

    def test_failedWrite(self) -> None:
        """A write that fails closes the connection, because a part may have been sent."""

        async def main(comm: Any) -> None:
            self.patch(comm._connection, "post", fails)
            with self.assertRaises(BufferError):
                await comm.write("more")
            self.assertTrue(comm.closed())

        def fails(tag: int, data: object) -> None:
            raise BufferError

        self.converse(self.endsReading, main)

    def test_longFrame(self) -> None:
        """An array that is longer than Dask's shards is received in one piece of memory."""
        numpy = import_module("numpy")
        serialize: Any = import_module("distributed.protocol").to_serialize
        length = 65 << 20

        async def handle(comm: Any) -> None:
            await comm.write({"x": serialize(numpy.ones(length, "u1"))})
            await self.endsReading(comm)

        async def main(comm: Any) -> None:
            lengths: list[int] = []
            allocate = self.module.host_array

            def allocated(size: int) -> Any:
                lengths.append(size)
                return allocate(size)

            self.patch(self.module, "host_array", allocated)
            found = (await comm.read())["x"]
            self.assertEqual((lengths, int(found.sum())), ([length], length))

        self.converse(handle, main)

    def test_stoppedListener(self) -> None:
        """A listener that is stopped before it serves a connection closes it, so that the client fails."""
        served: list[Any] = []

        async def handle(comm: Any) -> None:
            served.append(comm)

        async def play() -> None:
            async with self.core.listen("btl://127.0.0.1", handle) as listener:
                serve = listener._server._serve

                async def stopFirst(connection: Any) -> None:
                    listener.stop()
                    await serve(connection)

                self.patch(listener._server, "_serve", stopFirst)
                with self.assertRaises(self.core.CommClosedError):
                    await self.core.connect(listener.contact_address, timeout=60)
            self.assertEqual(served, [])

        asyncio.run(asyncio.wait_for(play(), 60))

    def test_badMessage(self) -> None:
        """A connection to a peer that sends an invalid message is closed."""

        async def handle(comm: Any) -> None:
            comm._connection.post(1, b"xxxx")
            await self.endsReading(comm)

        self.converse(handle, self.endsReading)

    def test_addresses(self) -> None:
        """Both ends know each other's address; a wildcard listener has an address by which it is reached."""
        seen: list[Any] = []

        async def handle(comm: Any) -> None:
            seen.append((comm.local_address, comm.peer_address))

        async def main(comm: Any) -> None:
            self.assertTrue(comm.same_host)
            seen.append((comm.peer_address, comm.local_address))

        self.converse(handle, main, "btl://")
        self.assertEqual(seen[0], seen[1])
        addressing: Any = import_module("distributed.comm.addressing")
        self.assertEqual(addressing.resolve_address("btl://localhost:5"), "btl://127.0.0.1:5")
        self.assertEqual(addressing.get_address_host_port("btl://192.0.2.1:5"), ("192.0.2.1", 5))
        self.assertEqual(addressing.get_local_address_for("btl://127.0.0.1:5"), "btl://127.0.0.1")

    def test_failures(self) -> None:
        """A missing listener and a port in use raise C{OSError}. Encryption cannot be required."""

        async def handle(comm: Any) -> None:
            await comm.close()

        async def main(comm: Any) -> None:
            with self.assertRaises(OSError):
                await self.core.listen(comm.peer_address, handle).start()
            with self.assertRaises(OSError):
                await self.core.connect("btl://127.0.0.1:1", timeout=0.1)
            with self.assertRaisesRegex(RuntimeError, "requires encryption"):
                await self.core.connect("btl://127.0.0.1:1", timeout=1, require_encryption=True)
            with self.assertRaisesRegex(RuntimeError, "requires encryption"):
                self.core.listen("btl://127.0.0.1", handle, require_encryption=True)

        self.converse(handle, main)
