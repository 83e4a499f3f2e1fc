"""
Connections of asyncio of which one call of one function raises an exception: the exception is raised to the
program or reported once, coroutines end, and another connection is not affected.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from twisted.internet.error import ConnectError
from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl import aio
from txrdma.btl.errors import CallFailed, MessageFailed
from txrdma.error import RDMAError
from txrdma.test.support.interruptions import Interruptions

HERE, THERE = "soft:127.0.6.3", "soft:127.0.6.4"
ASK, ANSWER = 1, 2

OWNERS: tuple[Any, ...] = (aio, aio.Connection, aio.Server, aio._Protocol)

TRIVIAL = ("future", "_awaited", "connectionLost", "end", "_readOrWrite", "_isHungUp")
"""Functions that only call others."""

SECONDS = 3.0
"""Time limit of a coroutine of the first connection, which the exception may have left without an answer."""


class InterruptionTests(SynchronousTestCase):
    slowBecause = "it makes a connection for each function"

    def setUp(self) -> None:
        self.isArmed = False
        self.others: list[aio.Connection] = []
        self.calls = Interruptions(self.patch, OWNERS, self.isVictim, TRIVIAL)

    def isVictim(self, first: object = None, *_others: object) -> bool:
        return self.isArmed and not any(each is first for each in self.others)

    async def serve(self, connection: aio.Connection) -> None:
        """Answer a call, and messages until the connection ends."""

        async def double(data: bytes) -> bytes:
            return 2 * data

        if not self.isArmed:
            self.others.append(connection)
        connection.answer(3, double)
        while True:
            await connection.send(ANSWER, await connection.receive(ASK))

    async def work(self, connection: aio.Connection) -> None:
        """Use all methods of a connection."""
        assert await connection.call(3, b"ab") == b"abab"
        await connection.sendMany(ASK, [b"1", b"2"])
        connection.post(ASK, b"3")
        await connection.ready()
        found = [await connection.receive(ANSWER) for _ in "12"]
        found += await connection.receiveMany(ANSWER)
        assert found == [b"1", b"2", b"3"], found

    async def victim(self, port: int) -> bool:
        """Connect, work and close; return whether the exception was reported."""
        connection = None
        try:
            connection = await aio.connect("127.0.6.4", port, HERE)
            await asyncio.wait_for(self.work(connection), SECONDS)
            async with connection:
                pass
        except ZeroDivisionError:
            return True
        except (RDMAError, CallFailed, MessageFailed, ConnectError, asyncio.TimeoutError, RuntimeError):
            pass
        finally:
            if connection is not None:
                connection.transport.abortConnection()
        return False

    async def play(self) -> dict[Any, str]:
        """Let a function raise for each of several connections; return what is wrong."""
        problems, found = list[Any](), {}
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: problems.append(context))
        async with await aio.listen(self.serve, "127.0.6.4", device=THERE) as server:
            other = await aio.connect("127.0.6.4", server.address.port, HERE)
            await self.work(other)
            self.isArmed = True
            self.assertFalse(await self.victim(server.address.port))
            self.isArmed = False
            self.assertGreater(len(self.calls.counts), 10)
            for (owner, name), number in self.calls.each(2):
                self.isArmed, before = True, len(asyncio.all_tasks())
                isReported = await asyncio.wait_for(self.victim(server.address.port), 10)
                self.isArmed = False
                await asyncio.wait_for(self.work(other), 10)
                for _ in range(100):
                    if len(asyncio.all_tasks()) <= before:
                        break
                    await asyncio.sleep(0.01)
                reports = isReported + len(problems) + len(self.flushLoggedErrors(ZeroDivisionError))
                if reports != self.calls.hasRaised or len(asyncio.all_tasks()) > before:
                    found[owner.__name__, name, number] = f"{reports} reports, {problems}"
                problems.clear()
            await other.close()
        return found

    def test_each(self) -> None:
        """The first, second and last call of each function."""
        self.assertEqual(asyncio.run(self.play()), {})
        gc.collect()  # logs failures without a handler
        self.flushLoggedErrors(MessageFailed)  # of requests that were not waited for
        self.assertEqual(self.flushLoggedErrors(), [])
