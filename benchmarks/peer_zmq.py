"""
pyzmq's PAIR sockets over ipc: the roles of L{benchmarks.ends}.
"""

from __future__ import annotations

import json
import os
import sys
import time

import zmq

from benchmarks.ends import Orders, pieces, tell

WARMING = 200


def serve(orders: Orders, socket: zmq.Socket[bytes]) -> None:
    """Sink or echo, until all is there; then wait for the end of standard input."""
    name = f"@txrdma-benchmark-{os.getpid()}"
    socket.bind(f"ipc://{name}")
    tell({"port": os.getpid()})
    if orders["scenario"] == "roundTrip":
        for _ in range(orders["count"] + WARMING):
            socket.send(socket.recv())
    else:
        left = orders["bytes"]
        while left > 0:
            left -= len(socket.recv(copy=False))
        socket.send(b"!")
    sys.stdin.read()
    tell({})


def ask(orders: Orders, socket: zmq.Socket[bytes]) -> None:
    """One measurement."""
    socket.connect(f"ipc://@txrdma-benchmark-{orders['port']}")
    if orders["scenario"] == "roundTrip":
        message, count = b"p" * orders["size"], orders["count"]
        for left in range(count + WARMING, 0, -1):
            if left == count:
                begun = time.perf_counter()
            socket.send(message)
            socket.recv()
        tell({"value": (time.perf_counter() - begun) / count})
    else:
        source = pieces(orders["write"])
        begun = time.perf_counter()
        for number in range(orders["bytes"] // orders["write"]):
            socket.send(source[number % len(source)], copy=False)
        socket.recv()
        tell({"value": orders["bytes"] / (time.perf_counter() - begun)})


if __name__ == "__main__":
    given: Orders = json.loads(sys.argv[2])
    os.sched_setaffinity(0, {given["core"]})
    with zmq.Context() as context, context.socket(zmq.PAIR) as pair:
        (serve if sys.argv[1] == "server" else ask)(given, pair)
