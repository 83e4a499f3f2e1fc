"""
One of two parties to an exchange: a queue pair with memory, and what can be asked of it by name.

A test asks one in its own process and one somewhere else (L{txrdma.test.system.kernel.agent}) in the same
words.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from twisted.internet.defer import Deferred, DeferredQueue, fail, gatherResults, maybeDeferred
from twisted.internet.task import deferLater

from txrdma.iba.types import GID, MACAddress, MTU, QPN, RKey
from txrdma.iba.verbs import (
    Access,
    AddressVector,
    Capacity,
    Completion,
    CompletionOpcode,
    Operation,
    QPAttributes,
    QPKind,
    QPState,
    ReceiveRequest,
    Segment,
    SendRequest,
)
from txrdma.interfaces import IVerbsDevice
from txrdma.verbs.completions import CompletionReader

EVERYTHING = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC
QKEY = 0x11111111
FIRST_PSN = 0xFFFFF0
"""Soon comes the wrap."""

PATIENT = QPAttributes(timeout=18, retryCount=7, rnrRetry=7, maxRDAtomic=4)
"""One second, seven times: an emulated peer is slow."""

ASKABLE = frozenset(
    "open connect fill digest number setNumber receive received send close".split(),
)


class Party:
    """
    A queue pair and its memory, made and taken away as asked.

    @ivar call: what tests use, here and over there.
    """

    def __init__(self, reactor: Any, device: IVerbsDevice) -> None:
        self._reactor = reactor
        self.device = device
        self._undo: list[Callable[[], None]] = []

    def call(self, name: str, **arguments: Any) -> Deferred[Any]:
        """Do what one of the methods says."""
        if name not in ASKABLE:
            return fail(ValueError(f"nobody can ask for {name!r}"))
        return maybeDeferred(getattr(self, name), **arguments)

    async def open(self, kind: str, size: int) -> dict[str, Any]:
        """
        Make a queue pair in INIT, and memory, instead of those that there are.

        @return: what the other party has to know of it.
        """
        self.close()
        device = self.device
        domain = self._retained(device.createProtectionDomain())
        channel = self._retained(device.createChannel())
        self._queue = self._retained(device.createCompletionQueue(512, channel))
        self._region = self._retained(domain.allocateMemory(size, EVERYTHING))
        self._domain = domain
        self._pair = self._retained(
            domain.createQueuePair(QPKind[kind], self._queue, self._queue, Capacity(128, 128, 2, 2))
        )
        self._sending: dict[int, Deferred[Completion]] = {}
        self._receives: DeferredQueue[Completion] = DeferredQueue()
        self._identifier = 0
        init = QPAttributes(state=QPState.INIT, pkeyIndex=0, port=1)
        isDatagram = self._pair.kind is QPKind.UD
        self._pair.modify(replace(init, qkey=QKEY) if isDatagram else replace(init, access=EVERYTHING))
        reader = CompletionReader(self._reactor, channel, [self._queue], self._completed)
        reader.start()
        self._undo.append(reader.stop)
        self._gidIndex = await self._usualGID()
        return {
            "gid": str(device.gids(1)[self._gidIndex]),
            "mac": str(device.portAttributes(1).mac),  # which names the UDP port of a software device
            "qpn": self._pair.number,
            "address": self._region.address,
            "rkey": self._region.rkey,
            "mtu": device.portAttributes(1).activeMTU.bytes,
        }

    def connect(self, peer: dict[str, Any]) -> None:
        """From INIT to RTS; towards the other party, unless it is for datagrams."""
        rtr = QPAttributes(state=QPState.RTR)
        rts = QPAttributes(state=QPState.RTS, sqPSN=FIRST_PSN)
        if self._pair.kind is QPKind.RC:
            mtu = min(MTU.fitting(peer["mtu"]), self.device.portAttributes(1).activeMTU)
            rtr = QPAttributes(
                state=QPState.RTR,
                address=self._wayTo(peer),
                pathMTU=mtu,
                destinationQPN=QPN(peer["qpn"]),
                rqPSN=FIRST_PSN,
                maxDestRDAtomic=4,
                minRNRTimer=12,
            )
            rts = replace(PATIENT, state=rts.state, sqPSN=rts.sqPSN)
        self._pair.modify(rtr)
        self._pair.modify(rts)

    def fill(self, offset: int, length: int, seed: int) -> None:
        """Put bytes into memory that a seed gives."""
        self._region.view[offset : offset + length] = random.Random(seed).randbytes(length)

    def digest(self, offset: int, length: int) -> str:
        """SHA-256 of memory."""
        return hashlib.sha256(self._region.view[offset : offset + length]).hexdigest()

    def number(self, offset: int) -> int:
        """Eight bytes of memory, in this host's byte order (x86-64's)."""
        return int.from_bytes(self._region.view[offset : offset + 8], "little")

    def setNumber(self, offset: int, value: int) -> None:
        self._region.view[offset : offset + 8] = value.to_bytes(8, "little")

    def receive(self, offset: int, length: int, count: int = 1) -> None:
        """Post receives, one after the other in memory."""
        self._pair.postReceive(
            [
                ReceiveRequest(index, [self._segment(offset + index * length, length)])
                for index in range(count)
            ]
        )

    async def received(self, count: int = 1) -> list[dict[str, Any]]:
        """What the next receives got."""
        reported = []
        for _ in range(count):
            one = await self._receives.get()
            reported.append(
                {
                    "status": one.status.name,
                    "length": one.length,
                    "immediate": one.immediate,
                    "from": one.sourceQPN,
                }
            )
        return reported

    async def send(
        self,
        operation: str,
        peer: dict[str, Any],
        offset: int = 0,
        length: int = 0,
        there: int = 0,
        pieces: int = 1,
        immediate: int = 0,
        operand: int = 0,
        compare: int = 0,
    ) -> list[str]:
        """
        Post requests and wait until all of them have ended.

        @param there: where in the peer's memory.
        @param pieces: how many requests; each has C{length} bytes, one after the other on both sides.
        @return: the statuses that there were.
        """
        requests = []
        for index in range(pieces):
            self._identifier += 1
            segment = self._segment(offset + index * length, length)
            request = SendRequest(
                self._identifier,
                Operation[operation],
                [segment],
                immediate=immediate,
                operand=operand,
                compare=compare,
            )
            if self._pair.kind is QPKind.UD:
                request.address = self._handle(peer)
                request.remoteQPN, request.remoteQKey = QPN(peer["qpn"]), QKEY
            else:
                request.remoteAddress = peer["address"] + there + index * length
                request.rkey = RKey(peer["rkey"])
            requests.append(request)
        ended: list[Deferred[Completion]] = [Deferred() for _ in requests]
        self._sending.update(zip((request.identifier for request in requests), ended, strict=True))
        self._pair.postSend(requests)
        return sorted({completion.status.name for completion in await gatherResults(ended)})

    def close(self) -> None:
        """Take everything away, but not the device."""
        while self._undo:
            self._undo.pop()()

    def _retained(self, made: Any) -> Any:
        self._undo.append(made.close)
        return made

    def _segment(self, offset: int, length: int) -> Segment:
        return Segment(self._region.address + offset, length, self._region.lkey)

    def _wayTo(self, peer: dict[str, Any]) -> AddressVector:
        mac = MACAddress.fromString(peer["mac"]) if "mac" in peer else None
        return AddressVector(GID.fromString(peer["gid"]), sgidIndex=self._gidIndex, dmac=mac)

    def _handle(self, peer: dict[str, Any]) -> Any:
        handle = self._domain.createAddressHandle(self._wayTo(peer))
        self._undo.append(handle.close)
        return handle

    async def _usualGID(self) -> int:
        """The index of the first GID of IPv4; kernels make it in their own time."""
        for _ in range(100):
            for index, gid in enumerate(self.device.gids(1)):
                if gid.isMapped:
                    return index
            await deferLater(self._reactor, 0.1)
        raise LookupError(f"{self.device.name} has no GID of IPv4")

    def _completed(self, batch: Sequence[Completion]) -> None:
        for completion in batch:
            waiting = self._sending.pop(completion.identifier, None) if _isSend(completion) else None
            if waiting is not None:
                waiting.callback(completion)
            else:
                self._receives.put(completion)


def _isSend(completion: Completion) -> bool:
    # The opcode of a failed completion means nothing, but that of a receive does not look like a send's.
    return cast(int, completion.opcode) < CompletionOpcode.RECEIVE
