"""
Measure UCXX, UCX's interface for asyncio, in the roles of L{benchmarks.ends}.

Its buffers are in the memory of the host. UCX chooses the transport, as among processes of a user by default.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

import numpy

os.environ["UCX_LOG_FILE"] = "stderr"  # UCX reads this when it is loaded; standard output is for results
import ucxx

from benchmarks.orders import Orders, pieces, sendMessage

WARMING = 200

IN_FLIGHT = 8 << 20
"""Bytes that are sent before the first of them has to be received, as with other transports."""


async def serve(orders: Orders) -> None:
    """Serve as sink or echo, and wait for the end of standard input."""

    async def answer(endpoint: ucxx.Endpoint) -> None:
        if orders["scenario"] == "roundTrip":
            message = numpy.empty(orders["size"], "u1")
            for _ in range(orders["count"] + WARMING):
                await endpoint.recv(message)
                await endpoint.send(message)
        else:
            buffers = [numpy.empty(orders["write"], "u1") for _ in range(IN_FLIGHT // orders["write"])]
            for _ in range(orders["bytes"] // IN_FLIGHT):
                await asyncio.gather(*map(endpoint.recv, buffers))
            await endpoint.send(numpy.ones(1, "u1"))

    listener = ucxx.create_listener(answer)
    sendMessage({"port": listener.port})
    await asyncio.to_thread(sys.stdin.read)
    sendMessage({})


async def ask(orders: Orders) -> None:
    endpoint = await ucxx.create_endpoint("127.0.0.1", orders["port"])
    if orders["scenario"] == "roundTrip":
        message, count = numpy.ones(orders["size"], "u1"), orders["count"]
        for left in range(count + WARMING, 0, -1):
            if left == count:
                begun = time.perf_counter()
            await endpoint.send(message)
            await endpoint.recv(message)
        sendMessage({"value": (time.perf_counter() - begun) / count})
    else:
        source = [numpy.frombuffer(piece, "u1") for piece in pieces(orders["write"])]
        together, begun = IN_FLIGHT // orders["write"], time.perf_counter()
        for number in range(orders["bytes"] // IN_FLIGHT):
            begin = number * together % len(source)
            await asyncio.gather(*map(endpoint.send, source[begin : begin + together]))
        await endpoint.recv(numpy.empty(1, "u1"))
        sendMessage({"value": orders["bytes"] / (time.perf_counter() - begun)})


if __name__ == "__main__":
    given: Orders = json.loads(sys.argv[2])
    os.sched_setaffinity(0, {given["core"]})
    asyncio.run((serve if sys.argv[1] == "server" else ask)(given))
