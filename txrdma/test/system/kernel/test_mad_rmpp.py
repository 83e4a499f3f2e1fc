"""
RMPP transfers between txrdma and the kernel: tables and long requests, on good and lossy wires.

The kernel sends a window again 2 seconds after its last segment, from the first unacknowledged one; it drops
a transfer that is incomplete 40 seconds after its first segment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from txrdma.iba.types import GID, GUID, LID
from txrdma.mad.errors import MADError, MADRefusal
from txrdma.mad.layouts.attributes import Attribute, Method
from txrdma.mad.layouts.messages import MADRequest
from txrdma.mad.layouts.sa import MultiPathRecord, NodeRecord, PathRecord
from txrdma.mad.layouts.smp import NodeDescription
from txrdma.test.system.kernel import Box, record, Witness
from txrdma.test.system.kernel.mads import ADMINISTRATION, MADCase, PATIENCE, run

BOXES = (Box(mtu=4200, timeout=500),)

KERNEL = "kernel MAD layer on rxe"
RECORDS = 1200

WE_FETCH, WE_SERVE = 500, 2000
"""Records; 10,000 take 78 and 25 seconds, most of it until the kernel sends lost segments again."""


class RMPPCase(MADCase):
    """RMPP transfers from one end to the other, by their port strings."""

    client = server = ""

    def fetch(self, count: int) -> None:
        """Check that a table arrives unchanged."""
        records = [
            NodeRecord(
                lid=LID(number % 0xBFFF + 1),
                nodeDescription=NodeDescription(nodeString=f"host {number}".encode().ljust(64, b"\0")),
            )
            for number in range(count)
        ]
        found = self.called(
            f"seconds for {count} records", lambda request: records, "SubnAdmGetTable", NodeRecord
        )
        self.same(found, records)

    def multiply(self, gids: int, paths: int) -> None:
        """Check that a request with that many GIDs and its answer with as many paths arrive unchanged."""
        sources = [GID.fromParts(0xFE80 << 48, GUID.fromInt(number)) for number in range(gids // 2)]
        targets = [
            GID.fromParts(0xFE80 << 48, GUID.fromInt(~number & 0xFFFF)) for number in range(gids - gids // 2)
        ]
        records = [PathRecord(dlid=LID(number % 0xBFFF + 1)) for number in range(paths)]
        asked: list[MADRequest] = []

        def answer(request: MADRequest) -> list[PathRecord]:
            asked.append(request)
            return records

        question = MultiPathRecord.between(sources, targets, numbPath=7)
        what = f"seconds for {gids} GIDs and {paths} paths"
        found = self.called(what, answer, "SubnAdmGetMulti", question)
        self.same(found, records)
        (request,) = asked
        self.assertEqual(request.payload, question.record)
        self.assertEqual(request.data.rstrip(b"\0"), (question.record.encode() + question.more).rstrip(b"\0"))

    def same(self, found: Sequence[Attribute], expected: Sequence[Attribute]) -> None:
        """Check equality; an assertion that shows all differences of long lists takes hours here."""
        self.assertEqual(len(found), len(expected))
        different = [n for n, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1]]
        self.assertEqual(different[:5], [])

    def called(
        self, what: str, answer: Callable[[MADRequest], object], rpc: str, payload: object
    ) -> Sequence[Any]:
        """Return the client's result when the server answers with the given value."""
        client, server = self.open(self.client), self.open(self.server)
        methods = Method.GET_TABLE, Method.GET_MULTI
        self.serve(server, ADMINISTRATION, answer, *methods)
        path = self.pathTo(1, getattr(server.port, "qpn", 1))
        began = time.monotonic()
        found: Sequence[Any] = self.result(client.call(rpc, payload, path, timeoutSeconds=PATIENCE), 15.0)
        record(what, round(time.monotonic() - began, 2))
        return found


class KernelToKernelTests(RMPPCase):
    """Both ends use the kernel's RMPP."""

    witness = Witness("umad port", KERNEL, "RMPP by the kernel, both ends")
    client, server = "umad:rxe0", "umad:rxe1"

    def test_empty(self) -> None:
        self.fetch(0)

    def test_one(self) -> None:
        """A table of one record arrives."""
        self.fetch(1)

    def test_long(self) -> None:
        """A table that exceeds the first buffer arrives."""
        self.fetch(RECORDS)

    def test_refused(self) -> None:
        """An error answer arrives instead of a table."""
        client = self.open(self.client)

        def refuse(request: MADRequest) -> object:
            raise MADRefusal(0x0300)

        server = self.open(self.server)
        self.serve(server, ADMINISTRATION, refuse, Method.GET_TABLE)
        path = self.pathTo(1, getattr(server.port, "qpn", 1))
        error = self.failure(client.SubnAdmGetTable(NodeRecord, path, timeoutSeconds=PATIENCE), MADError)
        self.assertEqual(error.status, 0x0300)

    def test_shortQuestion(self) -> None:
        """A request of one segment, and an answer of one segment, arrive."""
        self.multiply(2, 1)

    def test_longAnswer(self) -> None:
        """A request of one segment, and an answer of several segments, arrive."""
        self.multiply(11, 300)

    def test_longQuestion(self) -> None:
        """A request of several segments, and an answer of one segment, arrive."""
        self.multiply(100, 1)

    def test_doubleSided(self) -> None:
        """A request and an answer of several segments each (IBA 13.6.6.3) arrive."""
        self.multiply(254, 300)


class WeFetchTests(KernelToKernelTests):
    """txrdma requests by its queue pair; the kernel answers."""

    witness = Witness("own RMPP, vmad", KERNEL, "RMPP: txrdma requests, the kernel responds")
    client, server = "vmad:pyverbs:rxe0", "umad:rxe1"


class WeFetchByUmadTests(KernelToKernelTests):
    witness = Witness("own RMPP, umad", KERNEL, "RMPP: txrdma requests, the kernel responds")
    client, server = "umad:rxe0:rmpp=own", "umad:rxe1"


class WeServeTests(KernelToKernelTests):
    """The kernel requests; txrdma answers by its queue pair."""

    witness = Witness("own RMPP, vmad", KERNEL, "RMPP: the kernel requests, txrdma responds")
    client, server = "umad:rxe0", "vmad:pyverbs:rxe1"


class WeServeByUmadTests(KernelToKernelTests):
    """The kernel requests; txrdma answers by umad, and segments the answer."""

    witness = Witness("own RMPP, umad", KERNEL, "RMPP: the kernel requests, txrdma responds")
    client, server = "umad:rxe0", "umad:rxe1:rmpp=own"


class DisorderTests(RMPPCase):
    """A wire that loses, duplicates and reorders packets."""

    witness = Witness("own RMPP, vmad", KERNEL, "RMPP both ways, 2 % lost, 5 % doubled, 5 % reordered")
    how: Sequence[str] = ("loss", "2%", "duplicate", "5%", "delay", "2ms", "reorder", "95%")

    def setUp(self) -> None:
        super().setUp()
        for netdev in ("v0", "v1"):
            run("tc", "qdisc", "add", "dev", netdev, "root", "netem", "limit", "100000", *self.how)
            self.addCleanup(run, "tc", "qdisc", "del", "dev", netdev, "root")

    def weAsk(self) -> None:
        self.client, self.server = "vmad:pyverbs:rxe0", "umad:rxe1"

    def weAnswer(self) -> None:
        self.client, self.server = "umad:rxe0", "vmad:pyverbs:rxe1"

    def test_weFetch(self) -> None:
        """Tables sent by the kernel arrive."""
        self.weAsk()
        self.fetch(WE_FETCH)

    def test_weServe(self) -> None:
        """Tables sent by txrdma arrive."""
        self.weAnswer()
        self.fetch(WE_SERVE)


class LossTests(DisorderTests):
    witness = Witness("own RMPP, vmad", KERNEL, "RMPP both ways, 5 % lost")
    how = ("loss", "5%")

    def test_weAskAtLength(self) -> None:
        """txrdma's long request and the kernel's long answer arrive."""
        self.weAsk()
        self.multiply(254, 300)

    def test_weAnswerAtLength(self) -> None:
        """The kernel's long request and txrdma's long answer arrive."""
        self.weAnswer()
        self.multiply(254, 300)
