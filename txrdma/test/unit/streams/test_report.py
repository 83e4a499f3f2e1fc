"""Reports of a run: failures with both transcripts, tables, results for programs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support.streams.written import CONVERSATION, overTCP, written
from txrdma.testing.streams import matrix, report
from txrdma.testing.streams.catalogue import chosen
from txrdma.testing.streams.comparison import complaints
from txrdma.testing.streams.conversation import Unlike
from txrdma.testing.streams.matrix import Matrix, Verdict
from txrdma.testing.streams.provider import Provider, ROCEV2, RSOCKET, SHARED_MEMORY, TCP

ONLY_REASON = ("made", "data 5", "lost ConnectionLost", "- ended exit 0")
LOST = ("made", "lost ConnectionLost", "- ended exit 0")


def verdict(isGood: bool, name: str = "client-writes-5", reactor: str = "epoll") -> Verdict:
    """Return a verdict about a conversation of the catalogue."""
    [conversation] = chosen([name])
    tcp = overTCP(conversation=conversation)
    ours = written(conversation=conversation) if isGood else written(server=LOST, conversation=conversation)
    return Verdict(conversation, reactor, SHARED_MEMORY, tuple(complaints([tcp], ours)), (tcp,), ours)


class FailureTests(SynchronousTestCase):
    def test_failureHasComplaintsTranscriptsAndCommand(self) -> None:
        text = report.failure(verdict(False))
        self.assertIn("!! server: received 0 bytes; over TCP 5", text)
        rows = [line for line in text.splitlines() if "lost Connection" in line and "!!" not in line]
        self.assertEqual([line.count("lost Connection") for line in rows], [2, 2])
        self.assertEqual(sum("| " in line for line in rows), 1)
        self.assertIn("data 5 bytes", text)
        self.assertIn(
            "make conversations CONVERSATIONS=client-writes-5 ROUTE=shared-memory REACTOR=epoll", text
        )

    def test_onlyDifferingLinesAreMarked(self) -> None:
        failed = verdict(False)
        failed = replace(failed, ours=written(server=ONLY_REASON, conversation=failed.conversation))
        lines = report.failure(failed).splitlines()
        marked = [line for line in lines if " | " in line]
        self.assertEqual(len(marked), 1)
        self.assertRegex(marked[0], r"lost ConnectionDone +\| .*lost ConnectionLost")

    def test_logsAreIncludedOnRequestWithoutControls(self) -> None:
        failed = verdict(False)
        failed = replace(failed, ours=replace(failed.ours, logs={"server": "wrong \x00 here"}))
        self.assertNotIn("wrong", report.failure(failed))
        self.assertIn("wrong ? here", report.failure(failed, logs=True))


class TableTests(SynchronousTestCase):
    """The report of all conversations."""

    def test_tableHasConversationsAndEqualReactors(self) -> None:
        verdicts = [verdict(True), verdict(False, reactor="select"), verdict(True, "client-aborts")]
        verdicts += [verdict(True, "server-aborts"), verdict(True, "server-aborts", "select")]
        text = report.table(verdicts)
        self.assertIn("Reactors: epoll, select.\n", text)
        self.assertRegex(text, r"\*\*client-writes-5\*\*.* \| epoll; \*\*not as over TCP:\*\* select \|")
        self.assertRegex(text, r"\*\*client-aborts\*\*.* \| epoll \|")
        self.assertRegex(text, r"\*\*server-aborts\*\*.* \| all \|")
        self.assertEqual(text.count("| **client-"), 2)
        self.assertLess(text.index("### Sizes"), text.index("### Closing"))

    def test_declaredDifferencesAreListedOnceByReason(self) -> None:
        unlike = Unlike(("rocev2",), "server", "it is so")
        one = replace(CONVERSATION, name="one", unlike=(unlike,))
        other = replace(CONVERSATION, name="other", unlike=(unlike, replace(unlike, end="client")))
        lines = report.differences([CONVERSATION, one, other]).splitlines()
        self.assertEqual(lines[2:], ["| rocev2 | It is so. | one, other |"])

    def test_resultsHaveEveryVerdictWithComplaints(self) -> None:
        results = json.loads(json.dumps(report.results([verdict(True), verdict(False)])))
        outcomes = [(each["outcome"], len(each["complaints"])) for each in results["conversations"]]
        self.assertEqual(sorted(outcomes), [("failed", 2), ("passed", 0)])

    def test_pageNeedsMarkersForText(self) -> None:
        page = Path(self.mktemp())
        page.write_text(f"before\n{report.BEGIN.format('it')}\nold\n{report.END.format('it')}\nafter\n")
        for text in ("new\n", "newer\n"):
            report.replaceIn(page, "it", text)
        self.assertEqual(page.read_text().split(), ["before", *report.BEGIN.format("it").split(), "newer",
                                                    *report.END.format("it").split(), "after"])  # fmt: skip
        self.assertRaises(ValueError, report.replaceIn, page, "else", "text")


class MatrixTests(SynchronousTestCase):
    def test_onlySelectedConversationsUseOtherReactors(self) -> None:
        conversations = chosen(["client-writes-5", "client-writes-1"])
        routes = (SHARED_MEMORY, ROCEV2)
        self.assertEqual(Matrix(conversations, routes, ["epoll", "select"], False).count, 6)
        self.assertEqual(Matrix(conversations, routes, ["epoll", "select"], True).count, 8)

    def test_runsOverTCPArePatientAsWell(self) -> None:
        """On a slow host they get as much time as those over the least patient route."""
        routes = [
            replace(each, patience=patience) for each, patience in ((ROCEV2, 30.0), (SHARED_MEMORY, 20.0))
        ]
        played: list[Provider] = []
        runner: Any = Mock(play=lambda conversation, provider, reactor: played.append(provider))
        self.patch(matrix, "judged", Mock())
        Matrix(chosen(["client-writes-5"]), routes, ["epoll"], True).play(runner, lambda verdict: None)
        patient = [*routes, replace(TCP, patience=20.0)]
        self.assertEqual(
            {(each.name, each.patience) for each in played}, {(one.name, one.patience) for one in patient}
        )

    def test_excludedConversationIsNotPlayed(self) -> None:
        for name in RSOCKET.cannot:
            self.assertEqual(Matrix(chosen([name]), (SHARED_MEMORY, RSOCKET), ["epoll"], True).count, 1)
