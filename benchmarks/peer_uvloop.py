"""Measure asyncio protocols on uvloop's TCP, in the roles of L{benchmarks.ends}."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import cast

import uvloop

from benchmarks.orders import Orders, pieces, sendMessage

WARMING = 200


class Server(asyncio.Protocol):
    """A sink or an echo server."""

    def __init__(self, orders: Orders) -> None:
        self._left = orders.get("bytes", 0)
        self._echo = orders["scenario"] == "roundTrip"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._echo:
            self._transport.write(data)
            return
        self._left -= len(data)
        if self._left <= 0:
            self._transport.write(b"!")


class Source(asyncio.Protocol):
    """Writes a number of bytes as fast as the transport takes them."""

    def __init__(self, orders: Orders, done: asyncio.Future[float]) -> None:
        self._pieces = pieces(orders["write"])
        self._left = orders["bytes"] // orders["write"]
        self._running = True
        self._done = done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._begun = time.perf_counter()
        self.resume_writing()

    def resume_writing(self) -> None:
        self._running = True
        count = len(self._pieces)
        while self._running and self._left:
            self._left -= 1
            self._transport.write(self._pieces[self._left % count])

    def pause_writing(self) -> None:
        self._running = False

    def data_received(self, data: bytes) -> None:
        self._done.set_result(time.perf_counter() - self._begun)


class Ping(asyncio.Protocol):
    """Round trips of a small message."""

    def __init__(self, orders: Orders, done: asyncio.Future[float]) -> None:
        self._message = b"p" * orders["size"]
        self._count = orders["count"]
        self._left = self._count + WARMING
        self._done = done
        self._held = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._message)

    def data_received(self, data: bytes) -> None:
        self._held += len(data)
        if self._held < len(self._message):
            return
        self._held = 0
        self._left -= 1
        if self._left == self._count:
            self._begun = time.perf_counter()
        if self._left:
            self._transport.write(self._message)
        else:
            self._done.set_result((time.perf_counter() - self._begun) / self._count)


async def serve(orders: Orders) -> None:
    """Serve until standard input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Server(orders), "127.0.0.1", 0)
    sendMessage({"port": server.sockets[0].getsockname()[1]})
    await loop.run_in_executor(None, sys.stdin.read)
    sendMessage({})
    server.close()


async def ask(orders: Orders) -> None:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[float] = loop.create_future()
    kind = Ping if orders["scenario"] == "roundTrip" else Source
    await loop.create_connection(lambda: kind(orders, done), "127.0.0.1", orders["port"])
    seconds = await done
    sendMessage({"value": seconds if kind is Ping else orders["bytes"] / seconds})


if __name__ == "__main__":
    given: Orders = json.loads(sys.argv[2])
    os.sched_setaffinity(0, {given["core"]})
    uvloop.run(serve(given) if sys.argv[1] == "server" else ask(given))
