"""Blast radius in REST and on pages, from the tables of the last survey."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

from txrdma.error import DeviceUnavailable
from txrdma.monitor.web import blastradius
from txrdma.test.unit.monitor.test_pages import PageTestCase


class BlastRadiusTests(PageTestCase):
    def asked(self, query: str) -> dict[str, Any]:
        answer = self.page(f"/api/v1/blast-radius?{query}")
        self.assertEqual(answer.code, 200, answer)
        found: dict[str, Any] = answer.json
        return found

    def test_rest(self) -> None:
        """A switch, and a cable by either end, without further queries."""
        self.surveyed()
        sent = self.agent.sent
        found = self.asked(f"guid={self.guid('right')}")
        self.assertHas(found, hostsCutOff=2, switchesCutOff=0, switchesWithoutTables=0, leastBandwidth=0.5)
        self.assertEqual(sorted(row["name"] for row in found["cutOff"]), ["c", "d"])
        self.assertEqual(found["surveyedAt"], self.poller.surveyedAt)
        ends = f"guid={self.guid('right')}&port=1", f"guid={self.guid('c')}&port=1"
        one, other = map(self.asked, ends)
        self.assertEqual(one, other)
        self.assertHas(one, hostsCutOff=1, hostsWithLessBandwidth=0)
        self.assertEqual(
            one["mostAffected"][0], {"guid": self.guid("c"), "name": "c", "lostPaths": one["lostPaths"]}
        )
        self.assertEqual(self.agent.sent, sent)

    def test_before(self) -> None:
        """Before the first survey paths are unknown, and hosts that are cut off are not."""
        self.started()
        found = self.asked(f"guid={self.guid('right')}&port=1")
        self.assertHas(found, hostsCutOff=1, lostPaths=None, paths=None, surveyedAt=None)
        found = self.page(f"/api/v1/trace?from={self.guid('a')}&to={self.guid('c')}").json
        self.assertHas(found, isReached=False, surveyedAt=None, hops=[])
        self.assertIn("have not been read yet", found["reason"])
        self.assertIn("unknown until the tables are read", self.page(f"/nodes/{self.guid('right')}").text)

    def test_nothing(self) -> None:
        """A port without a link has nothing to lose; unknown nodes and ports are 404."""
        self.surveyed()
        self.assertHas(self.asked(f"guid={self.guid('right')}&port=8"), hostsCutOff=0, lostPaths=0)
        for query in (f"guid={'0x' + 16 * '9'}", f"guid={self.guid('right')}&port=77"):
            self.assertEqual(self.page(f"/api/v1/blast-radius?{query}").code, 404)
        self.assertEqual(self.page("/api/v1/blast-radius").code, 400)
        self.assertNotIn("Without this", self.page(f"/nodes/{self.guid('right')}/ports/8").text)

    def test_refresh(self) -> None:
        """Pages say what would be lost; one that is updated keeps that, and it is not computed again."""
        self.surveyed()
        computed = Mock(wraps=blastradius.blastRadius)
        self.patch(blastradius, "blastRadius", computed)
        node = f"/nodes/{self.guid('right')}"
        for path, words in (
            (node, ("Without this switch", "Most affected hosts", "down to 50 % of the links")),
            (f"{node}/ports/1", ("Without this cable", "Cut off: ")),
        ):
            text = self.page(path).text
            for word in ('id="blast-radius"', *words):
                self.assertIn(word, text)
            text = self.page(path, X_Refresh="live").text
            self.assertNotIn("blast-radius", text)
            self.assertIn('id="findings"', text)
        self.assertEqual(computed.call_count, 2)

    def test_changed(self) -> None:
        """After a change of the fabric the answer is that of its new links."""
        self.surveyed()
        query = f"guid={self.guid('left')}&port=3"
        self.assertHas(self.asked(query), hostsCutOff=0)
        self.fabric.cut("left", 4)
        self.pump(60.0)
        self.assertEqual([row["name"] for row in self.asked(query)["cutOff"]], ["a"])

    def test_jobs(self) -> None:
        """Jobs that lose hosts or paths are listed; they are read once a minute, and escaped."""
        self.surveyed()
        query, asked = f"guid={self.guid('right')}", []
        self.assertHas(self.asked(query), jobs=None, jobsUnknown="")

        async def read() -> str:
            asked.append(self.clock.seconds())
            return "7:ada:a,c:<b>run\n8:bob:a:x\n9:eve:elsewhere:y\n"

        self.watch.readJobs = read
        found = self.asked(query)
        self.assertHas(found["jobs"], total=3, withHostsCutOff=1, withLostPaths=1)
        (job,) = found["jobs"]["rows"]
        self.assertHas(job, job="7", user="ada", hosts=2, hostsCutOff=1, lostPaths=2)
        text = self.page(f"/nodes/{self.guid('right')}").text
        self.assertIn("1 of 3", text)
        self.assertIn("&lt;b&gt;run", text)
        self.assertEqual(len(asked), 1)
        self.pump(60.0)
        self.asked(query)
        self.assertEqual(len(asked), 2)

    def test_jobsUnknown(self) -> None:
        """If jobs cannot be read, or the output is something else, everything else is shown, and why."""
        self.surveyed()
        query, failures = f"guid={self.guid('right')}", [DeviceUnavailable("squeue is lost")]

        async def read() -> str:
            if failures:
                raise failures.pop()
            return "no jobs"

        self.watch.readJobs = read
        for why in ("squeue is lost", "expected the output of squeue"):
            found = self.asked(query)
            self.assertHas(found, hostsCutOff=2, jobs=None)
            self.assertIn(why, found["jobsUnknown"])
            self.assertIn(why, self.page(f"/nodes/{self.guid('right')}").text)
            self.pump(60.0)
