"""
Long messages between us and the kernel: tables, and questions that are long, too, on good wires and bad ones.

The kernel sends a window's segments again 2 seconds after the last of them, beginning with the first that was
not acknowledged; and it gives up what has not come whole 40 seconds after its first segment.
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
from txrdma.test.system.kernel import Box, OUTSIDE, record, Witness
from txrdma.test.system.kernel.mads import ADMINISTRATION, MADCase, PATIENCE, run

BOXES = (Box(mtu=4200, timeout=500),)

KERNEL = "kernel MAD layer on rxe"
RECORDS = 1200

WE_FETCH, WE_SERVE = 500, 2000
"""Records; 10,000 take 78 and 25 seconds, mostly until the kernel sends again what was lost."""


class RMPPCase(MADCase):
    """Long messages from one end to the other, by the ends' port strings."""

    client = server = ""

    def fetch(self, count: int) -> None:
        """A table comes as it is."""
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
        """A question with so many GIDs comes as it is, and so does its answer of so many paths."""
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
        """They are equal; an assertion that shows all differences of long lists takes hours here."""
        self.assertEqual(len(found), len(expected))
        different = [n for n, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1]]
        self.assertEqual(different[:5], [])

    def called(
        self, what: str, answer: Callable[[MADRequest], object], rpc: str, payload: object
    ) -> Sequence[Any]:
        """What the client gets for a call, when the server answers so."""
        client, server = self.open(self.client), self.open(self.server)
        methods = Method.GET_TABLE, Method.GET_MULTI
        self.serve(server, ADMINISTRATION, answer, *methods)
        path = self.pathTo(1, getattr(server.port, "qpn", 1))
        began = time.monotonic()
        found: Sequence[Any] = self.result(client.call(rpc, payload, path, timeoutSeconds=PATIENCE), 15.0)
        record(what, round(time.monotonic() - began, 2))
        return found


class KernelToKernelTests(RMPPCase):
    """Both by the kernel."""

    skip = OUTSIDE
    witness = Witness("umad port", KERNEL, "RMPP by the kernel, both ends")
    client, server = "umad:rxe0", "umad:rxe1"

    def test_empty(self) -> None:
        """An empty table."""
        self.fetch(0)

    def test_one(self) -> None:
        """A table of one record."""
        self.fetch(1)

    def test_long(self) -> None:
        """One that is longer than the first buffer."""
        self.fetch(RECORDS)

    def test_refused(self) -> None:
        """An error instead of a table."""
        client = self.open(self.client)

        def refuse(request: MADRequest) -> object:
            raise MADRefusal(0x0300)

        server = self.open(self.server)
        self.serve(server, ADMINISTRATION, refuse, Method.GET_TABLE)
        path = self.pathTo(1, getattr(server.port, "qpn", 1))
        error = self.failure(client.SubnAdmGetTable(NodeRecord, path, timeoutSeconds=PATIENCE), MADError)
        self.assertEqual(error.status, 0x0300)

    def test_shortQuestion(self) -> None:
        """A question of one segment with an answer of one."""
        self.multiply(2, 1)

    def test_longAnswer(self) -> None:
        """A question of one segment with an answer of many."""
        self.multiply(11, 300)

    def test_longQuestion(self) -> None:
        """A question of several segments with an answer of one."""
        self.multiply(100, 1)

    def test_doubleSided(self) -> None:
        """A question and an answer of many (IBA 13.6.6.3)."""
        self.multiply(254, 300)


class WeFetchTests(KernelToKernelTests):
    """We ask, by a queue pair of ours; the kernel answers."""

    witness = Witness("own RMPP, vmad", KERNEL, "RMPP: we ask, the kernel answers")
    client, server = "vmad:pyverbs:rxe0", "umad:rxe1"


class WeFetchByUmadTests(KernelToKernelTests):
    """We ask, and join what umad brings."""

    witness = Witness("own RMPP, umad", KERNEL, "RMPP: we ask, the kernel answers")
    client, server = "umad:rxe0:rmpp=own", "umad:rxe1"


class WeServeTests(KernelToKernelTests):
    """The kernel asks; we answer, by a queue pair of ours."""

    witness = Witness("own RMPP, vmad", KERNEL, "RMPP: the kernel asks, we answer")
    client, server = "umad:rxe0", "vmad:pyverbs:rxe1"


class WeServeByUmadTests(KernelToKernelTests):
    """The kernel asks; we cut what umad takes."""

    witness = Witness("own RMPP, umad", KERNEL, "RMPP: the kernel asks, we answer")
    client, server = "umad:rxe0", "umad:rxe1:rmpp=own"


class DisorderTests(RMPPCase):
    """The same on a wire that loses, doubles and delays packets so that others overtake them."""

    skip = OUTSIDE
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
        """The kernel sends."""
        self.weAsk()
        self.fetch(WE_FETCH)

    def test_weServe(self) -> None:
        """We send."""
        self.weAnswer()
        self.fetch(WE_SERVE)


class LossTests(DisorderTests):
    """The same on a wire that loses 5 of a hundred packets."""

    witness = Witness("own RMPP, vmad", KERNEL, "RMPP both ways, 5 % lost")
    how = ("loss", "5%")

    def test_weAskAtLength(self) -> None:
        """A long question of ours, a long answer of the kernel."""
        self.weAsk()
        self.multiply(254, 300)

    def test_weAnswerAtLength(self) -> None:
        """A long question of the kernel, a long answer of ours."""
        self.weAnswer()
        self.multiply(254, 300)
