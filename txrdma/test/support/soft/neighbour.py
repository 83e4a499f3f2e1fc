"""
Another process on this host with a software device, which echoes until it is killed.

C{python -m txrdma.test.support.soft.neighbour} prints its address as a line of JSON, reads the peer's from
its standard input, and reports when it has done what its arguments request.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from twisted.internet.epollreactor import EPollReactor

from txrdma.iba.types import GID, MACAddress, QPN
from txrdma.iba.verbs import AddressVector, Completion, CompletionOpcode, Operation, ReceiveRequest
from txrdma.soft.device import openSoftDevice
from txrdma.test.support.soft.pairs import End, INIT, RTR, RTS
from txrdma.verbs.completions import CompletionReader, ReaderReactor

RECEIVES = 32


def describe(end: End) -> str:
    """Return what the other process needs to connect to this end."""
    reported = {
        "gid": str(end.device.gids(1)[0]),
        "mac": str(end.device.mac),
        "qpn": int(end.qp.number),
        "rkey": end.region.rkey,
        "address": end.region.address,
    }
    return json.dumps(reported)


def connect(end: End, described: str) -> None:
    """Modify a queue pair to RTS, connected to the described end."""
    reported = json.loads(described)
    vector = AddressVector(GID.fromString(reported["gid"]), dmac=MACAddress.fromString(reported["mac"]))
    end.qp.modify(INIT)
    end.qp.postReceive([receive(end, identifier) for identifier in range(RECEIVES)])
    end.qp.modify(replace(RTR, address=vector, destinationQPN=QPN(reported["qpn"])))
    end.qp.modify(RTS)


def receive(end: End, identifier: int) -> ReceiveRequest:
    """Return a receive of 64 bytes at a separate offset."""
    return ReceiveRequest(identifier, [end.segment(identifier * 64, 64)])


def main() -> None:
    reactor = EPollReactor()
    end = End(openSoftDevice(reactor, port=0, route="shared-memory"))

    def handle(batch: Sequence[Completion]) -> None:
        for completion in batch:
            if completion.status:
                print("ended", completion.status.name, flush=True)
            elif completion.opcode is CompletionOpcode.RECEIVE:
                start = completion.identifier * 64
                message = bytes(end.region.view[start : start + completion.length])
                end.qp.postReceive([receive(end, completion.identifier)])
                end.post(1000, Operation.SEND, inline=[message])

    print(describe(end), flush=True)
    connect(end, sys.stdin.readline())
    CompletionReader(cast(ReaderReactor, reactor), end.channel, [end.queue], handle).start()
    print("ready", flush=True)
    reactor.run()


if __name__ == "__main__":
    main()
