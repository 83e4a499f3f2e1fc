"""Messages for coroutines of asyncio, on loops of asyncio and of uvloop."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
from array import array
from collections.abc import Coroutine
from importlib import import_module
from typing import Any
from unittest import mock, SkipTest

from twisted.internet.endpoints import TCP6ClientEndpoint
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl import aio
from txrdma.btl.connections import ClientEndpoint
from txrdma.btl.errors import CallFailed, MessageFailed
from txrdma.btl.module import _modules
from txrdma.error import InvalidRequest, Refused
from txrdma.testing.protocols import Recorders

HERE, THERE = "soft:127.0.6.1", "soft:127.0.6.2"
ASK, ANSWER = 1, 2
_SO_TIMESTAMPING = 37
_TIMESTAMPING = 1 << 1 | 1 << 4 | 1 << 11  # of sends, by software, without their bytes


class AsyncioTests(SynchronousTestCase):
    """A server and a client on one loop of asyncio."""

    slowBecause = "each test opens two devices"

    def newLoop(self) -> asyncio.AbstractEventLoop:
        return asyncio.new_event_loop()

    def runLoop(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on a new loop, and close the loop."""
        loop = self.newLoop()
        self.problems: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: self.problems.append(context))
        try:
            return loop.run_until_complete(asyncio.wait_for(main, 60))
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
            gc.collect()  # reports coroutines that were never awaited

    def test_messages(self) -> None:
        """Messages pass in both directions, also into a buffer, and both ends learn of the end."""
        reasons: list[Exception] = []

        async def serve(connection: aio.Connection) -> None:
            for _ in range(3):
                await connection.send(ANSWER, 2 * await connection.receive(ASK))
            self.assertEqual(await connection.receiveMany(ASK), [b"x", b"y"])
            connection.post(ANSWER, b"end")
            reasons.append(await connection.ended())

        async def main() -> None:
            async with await aio.listen(serve, "127.0.0.1", 0, THERE) as server:
                async with await aio.connect("127.0.0.1", server.address.port, HERE) as connection:
                    for length in (1, 5000, 300_000):
                        await connection.send(ASK, b"a" * length)
                        self.assertEqual(await connection.receive(ANSWER), b"a" * 2 * length)
                    await connection.sendMany(ASK, [b"x", b"y"])
                    await connection.ready()
                    into = bytearray(5)
                    self.assertEqual(await connection.receive(ANSWER, into), 3)
                    self.assertFalse(connection.hasEnded)
                self.assertTrue(connection.hasEnded)
                self.assertIsInstance(await connection.ended(), ConnectionDone)
                while not reasons:
                    await asyncio.sleep(0)

        self.runLoop(main())
        self.assertIsInstance(reasons[0], ConnectionDone)
        self.assertEqual(self.problems, [])

    def test_cancelledOnArrival(self) -> None:
        """
        No message is lost if a coroutine is cancelled in the iteration in which its message arrives: before
        that, or afterwards, before it resumes.
        """
        data, tags = [b"first", b"second", b"third"], range(ANSWER, ANSWER + 6)

        async def serve(connection: aio.Connection) -> None:
            for tag in tags:
                await connection.receive(ASK)
                await connection.sendMany(tag, data)
            await connection.ended()

        async def cancelled(connection: aio.Connection, isEarly: bool, name: str, *arguments: Any) -> None:
            real = getattr(connection.transport, name)

            def arrived(result: Any) -> Any:
                if isEarly:
                    task.cancel()
                else:
                    asyncio.get_running_loop().call_soon(task.cancel)  # before the task resumes
                return result

            with mock.patch.object(
                connection.transport, name, lambda *some: real(*some).addCallback(arrived)
            ):
                task = asyncio.ensure_future(getattr(connection, name)(*arguments))
                await asyncio.sleep(0)
                await connection.send(ASK, b"send")
                with self.assertRaises(asyncio.CancelledError):
                    await task

        async def main() -> None:
            async with await aio.listen(serve, "127.0.0.1", 0, THERE) as server:
                async with await aio.connect("127.0.0.1", server.address.port, HERE) as connection:
                    for isEarly, first in ((False, ANSWER), (True, ANSWER + 3)):
                        await cancelled(connection, isEarly, "receive", first)
                        await cancelled(connection, isEarly, "receive", first + 1, bytearray(10))
                        await cancelled(connection, isEarly, "receiveMany", first + 2)
                    for tag in tags:
                        self.assertEqual([await connection.receive(tag) for _ in data], data)

        self.runLoop(main())
        self.assertEqual(self.problems, [])

    def test_cancelledWhenConnected(self) -> None:
        """A coroutine that is cancelled after it has connected, before it resumes, leaves no connection."""
        reasons: list[Exception] = []

        async def serve(connection: aio.Connection) -> None:
            reasons.append(await connection.ended())

        async def main() -> None:
            def connected(endpoint: ClientEndpoint, factory: Any) -> Any:
                def arrived(result: Any) -> Any:
                    asyncio.get_running_loop().call_soon(task.cancel)  # before the task resumes
                    return result

                return connect(endpoint, factory).addCallback(arrived)

            connect = ClientEndpoint.connect
            async with await aio.listen(serve, "127.0.0.1", 0, THERE) as server:
                with mock.patch.object(ClientEndpoint, "connect", connected):
                    task = asyncio.ensure_future(aio.connect("127.0.0.1", server.address.port, HERE))
                    with self.assertRaises(asyncio.CancelledError):
                        await task
                while not reasons:
                    await asyncio.sleep(0)

        self.runLoop(main())
        self.assertIsInstance(reasons[0], ConnectionLost)
        self.assertEqual(self.problems, [])

    def test_calls(self) -> None:
        """Calls are answered by coroutines, and time limits of asyncio cancel both ends."""
        cancelled: list[bool] = []

        async def total(data: bytes) -> Any:
            await asyncio.sleep(0)
            return array("d", [sum(array("d", data))])

        async def never(data: bytes) -> None:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

        async def serve(connection: aio.Connection) -> None:
            connection.answer(1, total)
            connection.answer(2, never)
            await connection.ended()

        async def main() -> None:
            server = await aio.listen(serve, "127.0.0.1", 0, THERE)
            connection = await aio.connect("localhost", server.address.port, HERE)
            self.assertEqual(
                array("d", await connection.call(1, array("d", [1.5, 2]), 30)), array("d", [3.5])
            )
            with self.assertRaises(CallFailed):
                await connection.call(3)
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(connection.call(2), 0.05)
            with self.assertRaises(asyncio.TimeoutError):
                await connection.call(2, timeout=0.05)
            while len(cancelled) < 2:
                await asyncio.sleep(0)
            await connection.close()
            await server.close()

        self.runLoop(main())

    def test_cancelReceive(self) -> None:
        """A cancelled receive loses no message, and the end of the connection fails the next one."""

        async def serve(connection: aio.Connection) -> None:
            await connection.receive(ASK)
            await connection.send(ANSWER, b"late")
            if await connection.receive(ASK):
                await connection.receive(ASK)  # fails when the connection ends

        async def main() -> None:
            async with await aio.listen(serve, "127.0.0.1", 0, THERE) as server:
                connection = await aio.connect("127.0.0.1", server.address.port, HERE)
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(connection.receive(ANSWER), 0.05)
                connection.post(ASK, b"")
                self.assertEqual(await connection.receive(ANSWER), b"late")
                connection.post(ASK, b"more")
                await connection.close()
                with self.assertRaises(MessageFailed):
                    await connection.receive(ANSWER)

        self.runLoop(main())
        self.assertEqual(self.problems, [])

    def test_failures(self) -> None:
        """Exceptions of a server go to the loop, and close its connection; C{connect} raises its own."""

        async def serve(connection: aio.Connection) -> None:
            raise ZeroDivisionError("wrong")

        async def main() -> None:
            server = await aio.listen(serve, "127.0.0.1", 0, THERE)
            connection = await aio.connect("127.0.0.1", server.address.port, HERE)
            await connection.ended()
            await server.close()
            with self.assertRaises(Refused):
                await aio.connect("127.0.0.1", server.address.port, HERE)
            for host, port in (("no-such-host.invalid", 1), ("a..b", 1), ("127.0.0.1", 65536)):
                with self.assertRaises(InvalidRequest):
                    await aio.connect(host, port, HERE)

        self.runLoop(main())
        (problem,) = self.problems
        self.assertEqual(str(problem["exception"]), "wrong")

    async def tcpConnection(self) -> tuple[Any, socket.socket, Any]:
        """Return a TCP port, a blocking client of it, and the protocol of its server."""
        servers = Recorders()
        port: Any = aio.currentReactor().listenTCP(0, servers, interface="127.0.0.1")
        there = servers.next()
        client = socket.create_connection(("127.0.0.1", port.getHost().port))
        return port, client, await aio.future(there)

    def test_reset(self) -> None:
        """A TCP connection that its peer resets after it has sent something is lost, on uvloop, too."""

        async def main() -> None:
            port, client, server = await self.tcpConnection()
            with client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.send(b"last")
            await aio.future(server.lost)
            self.assertEqual(server.received, b"last")
            await aio.future(port.stopListening())

        self.runLoop(main())

    def test_errorQueue(self) -> None:
        """A message in the error queue of a TCP socket, here a time stamp, does not block the loop."""

        async def main() -> None:
            port, client, server = await self.tcpConnection()
            with client:
                handle = server.transport.getHandle()
                handle.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPING, _TIMESTAMPING)
                handle.send(b"with a time stamp")
                client.recv(100)
                client.send(b"last")
                waited = aio.currentReactor().seconds() + 10.0
                while server.received != b"last" and aio.currentReactor().seconds() < waited:
                    await asyncio.sleep(0.01)
                self.assertEqual(server.received, b"last")
                server.transport.abortConnection()
            await aio.future(server.lost)
            await aio.future(port.stopListening())

        self.runLoop(main())

    def test_addresses(self) -> None:
        """A client tries each address of a name, such as those of C{localhost} by IPv6 and by IPv4."""

        async def serve(connection: aio.Connection) -> None:
            await connection.ended()

        async def main() -> None:
            server = await aio.listen(serve, "127.0.0.1", 0, THERE)
            port = server.address.port
            found = [
                (socket.AF_INET6, socket.SOCK_STREAM, 0, "", ("::1", port, 0, 0)),
                (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port)),
            ]
            loop, resolve = asyncio.get_running_loop(), mock.AsyncMock(return_value=found)
            with mock.patch.object(loop, "getaddrinfo", resolve):
                connection = await aio.connect("both.example", port, HERE)
                await connection.close()
                await server.close()
                with self.assertRaises(Refused):
                    await aio.connect("both.example", port, HERE)

        self.runLoop(main())

    def test_linkLocal(self) -> None:
        """A client connects to a link-local address on the interface that the host names."""
        (number, name) = socket.if_nameindex()[0]
        found = [(socket.AF_INET6, socket.SOCK_STREAM, 0, "", ("fe80::1", 1, 0, number))]

        async def main() -> None:
            loop, resolve = asyncio.get_running_loop(), mock.AsyncMock(return_value=found)
            with mock.patch.object(loop, "getaddrinfo", resolve):
                with mock.patch.object(aio, "TCP6ClientEndpoint", wraps=TCP6ClientEndpoint) as made:
                    with self.assertRaises(Refused):  # nothing listens at port 1
                        await aio.connect(f"fe80::1%{name}", 1, HERE)
            self.assertEqual(made.call_args.args[1], f"fe80::1%{name}")

        self.runLoop(main())

    def test_group(self) -> None:
        """A program that was started alone is a group."""

        async def main() -> None:
            group = await aio.joinGroup()
            self.assertEqual(await aio.future(group.allgather(b"1")), [b"1"])
            await aio.future(group.close())

        self.runLoop(main())

    def test_loops(self) -> None:
        """Each loop has a reactor; the reactor of a closed loop is released."""

        async def main() -> Any:
            return aio.currentReactor(), aio.currentReactor()

        first, second = self.runLoop(main()), self.runLoop(main())
        self.assertIs(first[0], first[1])
        self.assertIsNot(first[0], second[0])
        self.assertEqual(list(aio._reactors.values()), [second[0]])

    def test_loopEndsFirst(self) -> None:
        """What a program leaves open on a closed loop is closed, so peers notice it and ports are free."""
        left: list[Any] = []
        reasons: list[Exception] = []

        async def serve(connection: aio.Connection) -> None:
            reasons.append(await connection.ended())

        async def leave(port: int) -> None:
            number = left[0].address.port if left else 0
            left.append(await aio.listen(serve, "127.0.0.1", number, HERE))
            left.append(await aio.connect("127.0.0.1", port, HERE))
            await left[-1].send(ASK, b"")

        def program(port: int) -> None:
            loop = self.newLoop()
            loop.run_until_complete(leave(port))
            loop.close()

        def owners() -> set[object]:
            return {owner for owner, _devices in _modules}

        async def main() -> None:
            known = {*owners(), aio.currentReactor()}
            async with await aio.listen(serve, "127.0.0.1", 0, THERE) as server:
                for number in (1, 2):
                    await asyncio.to_thread(program, server.address.port)
                    aio.currentReactor()
                    self.assertEqual(owners() - known, set())
                    while len(reasons) < number:
                        await asyncio.sleep(0)

        self.runLoop(main())
        self.assertEqual([type(each) for each in reasons], 2 * [ConnectionLost])
        self.assertEqual(self.problems, [])


class UVLoopTests(AsyncioTests):
    """The same tests on uvloop."""

    def newLoop(self) -> asyncio.AbstractEventLoop:
        try:
            uvloop = import_module("uvloop")
        except ImportError:
            raise SkipTest("uvloop is not installed") from None
        loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        return loop
