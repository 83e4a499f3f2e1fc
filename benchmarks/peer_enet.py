"""Measure pyenet's reliable packets over UDP, on one channel, in the roles of L{benchmarks.ends}."""

from __future__ import annotations

import json
import os
import socket
import sys
import time

import enet

from benchmarks.orders import cpuSeconds, Orders, pieces, sendMessage

BURST = 256
"""Messages that are queued between two calls of C{Host.service}."""

_MOST_WAITING = 8 * BURST


def serve(orders: Orders) -> None:
    """Count messages, answer the last one, and wait for the end of standard input."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    host = enet.Host(enet.Address(b"127.0.0.1", port), 1, 1, 0, 0)
    sendMessage({"port": port})
    left = orders["count"]
    while True:
        event = host.service(1000)
        if event.type == enet.EVENT_TYPE_RECEIVE:
            left -= 1
            if not left:
                event.peer.send(0, enet.Packet(b"!", enet.PACKET_FLAG_RELIABLE))
        elif event.type == enet.EVENT_TYPE_DISCONNECT:
            break
    sys.stdin.read()
    sendMessage({})


def ask(orders: Orders) -> None:
    """Measure once: send the messages, and wait for the answer."""
    source, count = pieces(orders["write"]), orders["count"]
    host = enet.Host(None, 1, 1, 0, 0)
    peer = host.connect(enet.Address(b"127.0.0.1", orders["port"]), 1)
    while host.service(1000).type != enet.EVENT_TYPE_CONNECT:
        pass
    cpu, begun = cpuSeconds(), time.perf_counter()
    sent, reliable = 0, enet.PACKET_FLAG_RELIABLE
    while True:
        if sent < count and peer.reliableDataInTransit < _MOST_WAITING * orders["write"]:
            for number in range(sent, min(count, sent + BURST)):
                peer.send(0, enet.Packet(source[number % len(source)], reliable))
            sent = min(count, sent + BURST)
            wait = 0
        else:
            wait = 1000 if sent == count else 1
        if host.service(wait).type == enet.EVENT_TYPE_RECEIVE:
            break
    seconds = time.perf_counter() - begun
    peer.disconnect()
    host.flush()
    sendMessage({"value": count / seconds, "cpu": (cpuSeconds() - cpu) / count})


if __name__ == "__main__":
    given: Orders = json.loads(sys.argv[2])
    os.sched_setaffinity(0, {given["core"]})
    (serve if sys.argv[1] == "server" else ask)(given)
