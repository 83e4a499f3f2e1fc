"""The comparison with TCP detects every difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support.streams.written import CONVERSATION, later, ORDINARY_SERVER, overTCP, written
from txrdma.testing.streams.catalogue import chosen, everyConversation
from txrdma.testing.streams.comparison import complaints, complaintsAboutTCP, SLACK
from txrdma.testing.streams.conversation import Outcome, Unlike, Via
from txrdma.testing.streams.provider import PROVIDERS, ROCEV2
from txrdma.testing.streams.runner import ConversationRun
from txrdma.testing.streams.script import parse
from txrdma.testing.streams.transcript import Entry, PROCESS, WAITED

HALVES = ("made", "data 5", "read-lost", "lost ConnectionDone", "- ended exit 0")
FEWER = ("made", "data 4", "lost ConnectionDone", "- ended exit 0")
LOST = ("made", "data 5", "lost ConnectionLost", "- ended exit 0")


class _Comparing(SynchronousTestCase):
    def complaints(self, ours: ConversationRun, *tcp: ConversationRun) -> list[str]:
        """Return the complaints about a run."""
        return [str(each) for each in complaints(tcp or (overTCP(),), ours)]

    def assertComplains(self, ours: ConversationRun, *what: str, tcp: Sequence[ConversationRun] = ()) -> None:
        """Assert that exactly these complaints are made."""
        self.assertEqual(self.complaints(ours, *tcp), list(what))


class PlantedTests(_Comparing):
    """Artificial differences between two runs."""

    def test_onlyRealDifferencesAtServerAreReported(self) -> None:
        end, tcp = "- ended exit 0", ORDINARY_SERVER
        one = ("made", "write-lost", "read-lost", "lost ConnectionDone", end)
        other = ("made", "read-lost", "write-lost", "lost ConnectionDone", end)
        plain, halves = "made, lost ConnectionDone", "made, read-lost, lost ConnectionDone"
        disorder = "made, read-lost, write-lost, lost ConnectionDone", ", ".join(one[:-1])
        logging = ("- logged something is wrong", *tcp)
        paused = ("made", "broken dataReceived of a paused transport", *tcp[1:])
        behindHalf = ("made", "read-lost", "data 5", "lost ConnectionDone", end)
        fell = ("made TCP after NOSMCDEV", *tcp[1:])
        for server, reference, *expected in (
            (tcp, tcp),
            (("made", "data 1", "data 3", *tcp[1:]), tcp),
            (tcp, FEWER),
            (logging, logging),
            (paused, paused),
            (LOST, tcp, f"saw made, lost ConnectionLost; over TCP {plain}"),
            (FEWER, tcp, "received 4 bytes; over TCP 5"),
            (tcp, HALVES, f"saw {plain}; over TCP {halves}"),
            (HALVES, tcp, f"saw {halves}; over TCP {plain}"),
            (other, one, f"saw {disorder[0]}; over TCP {disorder[1]}"),
            ((*tcp[:-1], "- ended SIGSEGV"), tcp, "the process ended by SIGSEGV, over TCP by exit 0"),
            (("made", "- ended out of time"), tcp, "had not ended after 1 s"),
            (fell, tcp, "was served by TCP after NOSMCDEV instead of SMC-R shared-memory"),
            (logging, tcp, "logged errors: something is wrong"),
            (paused, tcp, "dataReceived of a paused transport"),
            (
                ("made", "data 5 00000000", *tcp[2:]),
                tcp,
                "the first 5 bytes are not those that the client wrote",
            ),
            (("made", "data 6", *tcp[2:]), tcp, "received 6 bytes, but only 5 were written"),
            (("made", "lost ConnectionDone", "data 5", end), tcp, "data came behind lost"),
            (behindHalf, HALVES, "data came behind read-lost"),
        ):
            named = [f"server: {what}" for what in expected]
            self.assertComplains(written(server=server), *named, tcp=[overTCP(server=reference)])

    def test_callsOfProducersAreCompared(self) -> None:
        stopped = ("made", "data 5", "stop-producing", "lost ConnectionDone", "- ended exit 0")
        self.assertEqual(len(self.complaints(written(server=stopped))), 1)

    def test_producerOfMoreThanBuffersHoldIsStopped(self) -> None:
        """When the peer leaves early, only a producer that has not written everything is stopped."""
        leaves = replace(CONVERSATION, client="made: pause\nreceived 5: lose")
        rest = ("lost ConnectionDone", "- ended exit 0")
        for conversation, count, mayStop in ((leaves, 6, True), (leaves, 9, False), (CONVERSATION, 6, False)):
            stopped = written(server=("made", f"wrote {count}", "stop-producing", *rest))
            finished = overTCP(server=("made", "wrote 9", *rest), conversation=conversation)
            ours = replace(stopped, conversation=conversation)
            self.assertEqual(len(self.complaints(ours, finished)), not mayStop, conversation)

    def test_onlyMuchLaterEndIsDetected(self) -> None:
        self.assertComplains(later(written(), "server", SLACK - 0.1))
        expected = "server: lost the connection after 12.0 s, over TCP after 2.0 s"
        self.assertComplains(later(written(), "server", 10.0), expected)

    def test_muchLongerProcessIsDetected(self) -> None:
        ours = written()
        *before, last = ours.entries["server"]
        late = [*before, replace(last, at=last.at + 10.0)]
        ours = replace(ours, entries={**ours.entries, "server": late})
        self.assertComplains(ours, "server: the process ended after 13.0 s, over TCP after 3.0 s")

    def test_waitsForProcessorAreTolerated(self) -> None:
        for waited, count in ((SLACK - 1, 1), (SLACK + 1, 0)):
            ours = later(written(), "server", 2 * SLACK)
            *before, last = ours.entries["client"]
            entries = [*before, Entry(last.at, PROCESS, WAITED, str(waited)), last]
            ours = replace(ours, entries={**ours.entries, "client": entries})
            self.assertEqual(len(self.complaints(ours)), count)

    def test_endBehindProxyMustUseTCP(self) -> None:
        near = replace(CONVERSATION, via=Via.NEAR_PROXY)
        client = ("made TCP", "wrote 5", "lost ConnectionDone", "- ended exit 0")
        self.assertComplains(written(client=client, conversation=near))
        self.assertEqual(len(self.complaints(written(conversation=near))), 1)

    def test_differencesOfSecondConnectionAreDetected(self) -> None:
        twice = (*ORDINARY_SERVER[:-1], "1# made", "1# data 5", "1# lost ConnectionDone", "- ended exit 0")
        other = (*ORDINARY_SERVER[:-1], "1# made", "1# data 4", "1# lost ConnectionDone", "- ended exit 0")
        tcp = [overTCP(server=twice)]
        self.assertComplains(written(), "server: 1 connections, over TCP 2", tcp=tcp)
        expected = "server: 1 of 2 connections received 4 bytes; over TCP 5"
        self.assertComplains(written(server=other), expected, tcp=tcp)

    def test_failedConnectionMustHaveSameError(self) -> None:
        refused = ("- failed ConnectionRefusedError", "- ended exit 0")
        other = ("- failed NotSMC", "- ended exit 0")
        tcp = [overTCP(client=refused)]
        self.assertComplains(written(client=refused), tcp=tcp)
        expected = "client: connecting failed with NotSMC, over TCP with ConnectionRefusedError"
        self.assertComplains(written(client=other), expected, tcp=tcp)

    def test_repeatedCallIsDetectedIfForbidden(self) -> None:
        twice = ("made", "data 5", "lost ConnectionDone", "lost ConnectionDone", "- ended exit 0")
        found = self.complaints(written(server=twice))
        self.assertIn("server: lost came 2 times", found)


class RaceTests(_Comparing):
    """Conversations with several possible outcomes over TCP."""

    def test_eachOutcomeOfTCPIsAccepted(self) -> None:
        tcp = [overTCP(), overTCP(server=LOST)]
        self.assertComplains(written(), tcp=tcp)
        self.assertComplains(written(server=LOST), tcp=tcp)
        self.assertEqual(len(self.complaints(written(server=HALVES), *tcp)), 1)

    def test_bytesAreThoseOfTCPsSameOutcome(self) -> None:
        none = ("made", "lost ConnectionLost", "- ended exit 0")
        tcp = [overTCP(), overTCP(server=none)]
        self.assertComplains(written(server=none), tcp=tcp)
        self.assertComplains(written(server=FEWER), "server: received 4 bytes; over TCP 5", tcp=tcp)

    def test_declaredOutcomeNeedsAllBytes(self) -> None:
        conversation = replace(
            CONVERSATION,
            races="by chance",
            also=(Outcome("server", ("made", "lost ConnectionLost"), received=5),),
        )
        tcp = [overTCP(conversation=conversation)]
        self.assertComplains(written(server=LOST, conversation=conversation), tcp=tcp)
        fewer = ("made", "data 4", "lost ConnectionLost", "- ended exit 0")
        self.assertComplains(
            written(server=fewer, conversation=conversation), "server: received 4 bytes; over TCP 5", tcp=tcp
        )

    def test_endThatLeavesMayHaveReceivedMore(self) -> None:
        conversation = replace(CONVERSATION, server="received 3: kill")
        tcp = [overTCP(conversation=conversation)]
        self.assertComplains(written(server=FEWER, conversation=conversation), tcp=tcp)
        fewer = ("made", "data 2", "lost ConnectionDone", "- ended exit 0")
        expected = "server: received 2 bytes; over TCP 5"
        self.assertComplains(written(server=fewer, conversation=conversation), expected, tcp=tcp)


class UnlikeTests(_Comparing):
    """Differences that a conversation declares for a route."""

    unlike = Unlike(("rocev2",), "server", "because", calls=("made", "lost ConnectionLost"), fewer=True)

    def test_declaredDifferenceHoldsOnItsRouteAndEnd(self) -> None:
        conversation = replace(CONVERSATION, unlike=(self.unlike,))
        fewer = ("made", "data 4", "lost ConnectionLost", "- ended exit 0")
        self.assertComplains(written(server=fewer, provider=ROCEV2, conversation=conversation))
        self.assertEqual(len(self.complaints(written(server=fewer, conversation=conversation))), 2)
        client = ("made", "wrote 5", "lost ConnectionLost", "- ended exit 0")
        self.assertEqual(
            len(self.complaints(written(client=client, provider=ROCEV2, conversation=conversation))), 1
        )

    def test_declaredDifferenceIsOptional(self) -> None:
        conversation = replace(CONVERSATION, unlike=(self.unlike,))
        self.assertComplains(written(provider=ROCEV2, conversation=conversation))

    def test_fewerBytesNeedDeclaredCalls(self) -> None:
        conversation = replace(CONVERSATION, unlike=(self.unlike,))
        expected = "server: received 4 bytes; over TCP 5"
        self.assertComplains(written(server=FEWER, provider=ROCEV2, conversation=conversation), expected)

    def test_onlyDeclaredEndMayBeLate(self) -> None:
        unlike = Unlike(("rocev2",), "server", "because", later=True)
        conversation = replace(CONVERSATION, unlike=(unlike,))
        ours = written(provider=ROCEV2, conversation=conversation)
        self.assertComplains(later(ours, "server", 100.0))
        self.assertEqual(len(self.complaints(later(ours, "client", 100.0))), 1)


class JudgeTests(SynchronousTestCase):
    """TCP's run is verified before it is used for comparison."""

    def test_brokenTCPConversationIsNotCompared(self) -> None:
        self.assertEqual(complaintsAboutTCP([overTCP()]), [])
        for wrong in (
            ("made", "- ended out of time"),
            ("made", "data 5 00000000", "lost ConnectionDone", "- ended exit 0"),
        ):
            self.assertEqual(len(complaintsAboutTCP([overTCP(), overTCP(server=wrong)])), 1)


class CatalogueTests(SynchronousTestCase):
    def test_conversations(self) -> None:
        """Scripts can be parsed; titles are sentences; only races have several outcomes; routes exist."""
        routes = {provider.name for provider in PROVIDERS} | {"verbs"}
        for conversation in everyConversation():
            parse(conversation.client)
            parse(conversation.server)
            self.assertTrue(conversation.about.endswith("."), conversation.name)
            self.assertTrue(conversation.races or not conversation.also, conversation.name)
            for unlike in conversation.unlike:
                self.assertFalse(unlike.why.endswith("."), conversation.name)  # part of a sentence
                self.assertLessEqual(set(unlike.routes), routes, conversation.name)

    def test_names(self) -> None:
        names = [conversation.name for conversation in everyConversation()]
        self.assertEqual(len(names), len(set(names)))
        for name in names:
            self.assertEqual([each.name for each in chosen([name])], [name])

    def test_unmatchedPatternIsError(self) -> None:
        self.assertRaises(ValueError, chosen, ["no-such-thing"])
