"""
Conversations between real processes detect planted defects of a transport.
"""

from __future__ import annotations

from dataclasses import replace

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support.streams.runners import overTCP, theRunner
from txrdma.testing.streams import runner
from txrdma.testing.streams.catalogue import chosen
from txrdma.testing.streams.comparison import complaints
from txrdma.testing.streams.matrix import USUAL_REACTOR
from txrdma.testing.streams.provider import TCP


class PlantedTests(SynchronousTestCase):
    """Defective TCP compared with TCP."""

    slowBecause = "it starts processes that hang until they are ended"

    def found(self, mistake: str, name: str, patience: float = runner.PATIENCE) -> list[str]:
        """Return the complaints about a conversation with that defect."""
        [conversation] = chosen([name])
        reference = overTCP(conversation, USUAL_REACTOR)
        self.patch(runner, "PATIENCE", patience)
        provider = replace(TCP, name=mistake, imports=(f"txrdma.test.support.streams.planted.{mistake}",))
        ours = theRunner().play(conversation, provider, USUAL_REACTOR)
        return [str(each) for each in complaints(reference, ours)]

    def test_lostByteIsDetected(self) -> None:
        self.assertEqual(self.found("losing", "client-writes-5"), ["server: received 4 bytes; over TCP 5"])
        found = self.found("losing", "client-writes-300kB")
        self.assertIn("server: received 299,999 bytes; over TCP 300,000", found)
        self.assertRegex("\n".join(found), "bytes are not those that the client wrote")

    def test_changedByteIsDetected(self) -> None:
        found = self.found("mixing", "client-writes-5")
        self.assertEqual(found, ["server: the first 5 bytes are not those that the client wrote"])

    def test_wrongReasonIsDetectedAtBothEnds(self) -> None:
        expected = "saw made, lost ConnectionLost; over TCP made, lost ConnectionDone"
        found = self.found("frightening", "client-writes-5")
        self.assertEqual(sorted(found), [f"client: {expected}", f"server: {expected}"])

    def test_dataForPausedProtocolIsDetected(self) -> None:
        found = self.found("deaf", "paused-while-5-comes-and-the-peer-exits")
        self.assertEqual(found, ["server: dataReceived of a paused transport"])

    def test_dyingProcessIsDetected(self) -> None:
        found = self.found("dying", "client-writes-5")
        self.assertIn("client: the process ended by SIGSEGV, over TCP by exit 0", found)

    def test_endlessConversationIsDetected(self) -> None:
        found = self.found("dumb", "client-half-closes", patience=2.0)
        self.assertEqual([each.split(" ", 1)[0] for each in found], ["server:", "client:"])
        self.assertRegex(found[0], r"had not ended after \d+ s")
