"""
Measure pyzmq's PAIR sockets, or REQ and REP with C{isCall} in the orders, over ipc, or over tcp with
C{isTCP}, in the roles of L{benchmarks.ends}.
"""

from __future__ import annotations

import json
import os
import sys
import time

import zmq

from benchmarks.orders import cpuSeconds, Orders, pieces, sendMessage

WARMING = 200


def serve(orders: Orders, socket: zmq.Socket[bytes]) -> None:
    """Serve as sink or echo, and wait for the end of standard input."""
    if orders.get("isTCP"):
        sendMessage({"port": socket.bind_to_random_port("tcp://127.0.0.1")})
    else:
        socket.bind(f"ipc://@txrdma-benchmark-{os.getpid()}")
        sendMessage({"port": os.getpid()})
    if orders["scenario"] == "roundTrip":
        for _ in range(orders["count"] + WARMING):
            socket.send(socket.recv())
    elif orders["scenario"] == "messages":
        for _ in range(orders["count"]):
            socket.recv()
        socket.send(b"!")
    else:
        left = orders["bytes"]
        while left > 0:
            left -= len(socket.recv(copy=False))
        socket.send(b"!")
    sys.stdin.read()
    sendMessage({})


def ask(orders: Orders, socket: zmq.Socket[bytes]) -> None:
    isTCP, port = orders.get("isTCP"), orders["port"]
    socket.connect(f"tcp://127.0.0.1:{port}" if isTCP else f"ipc://@txrdma-benchmark-{port}")
    if orders["scenario"] == "roundTrip":
        message, count = b"p" * orders["size"], orders["count"]
        for left in range(count + WARMING, 0, -1):
            if left == count:
                begun = time.perf_counter()
            socket.send(message)
            socket.recv()
        sendMessage({"value": (time.perf_counter() - begun) / count})
    elif orders["scenario"] == "messages":
        source, count = pieces(orders["write"]), orders["count"]
        cpu, begun = cpuSeconds(), time.perf_counter()
        for number in range(count):
            socket.send(source[number % len(source)])
        socket.recv()
        seconds = time.perf_counter() - begun
        sendMessage({"value": count / seconds, "cpu": (cpuSeconds() - cpu) / count})
    else:
        source = pieces(orders["write"])
        begun = time.perf_counter()
        for number in range(orders["bytes"] // orders["write"]):
            socket.send(source[number % len(source)], copy=False)
        socket.recv()
        sendMessage({"value": orders["bytes"] / (time.perf_counter() - begun)})


if __name__ == "__main__":
    given: Orders = json.loads(sys.argv[2])
    os.sched_setaffinity(0, {given["core"]})
    kind = zmq.PAIR
    if given.get("isCall"):
        kind = zmq.REP if sys.argv[1] == "server" else zmq.REQ
    with zmq.Context() as context, context.socket(kind) as pair:
        (serve if sys.argv[1] == "server" else ask)(given, pair)
