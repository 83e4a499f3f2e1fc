"""
The runner records what real processes do, however they end, and leaves none of them running.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import txrdma
from txrdma.test.support.streams.runners import theRunner
from txrdma.testing.streams import runner as runnerModule
from txrdma.testing.streams import transcript
from txrdma.testing.streams.comparison import complaintsAboutTCP
from txrdma.testing.streams.conversation import Conversation, Via
from txrdma.testing.streams.player import REACTORS
from txrdma.testing.streams.provider import TCP
from txrdma.testing.streams.runner import Closed, ConversationRun, ConversationRunner, ForkserverEnded

CHECKOUT = Path(txrdma.__file__).parent.parent

ENDLESS = """
from txrdma.testing.streams.conversation import Conversation
from txrdma.testing.streams.provider import TCP
from txrdma.testing.streams.runner import ConversationRunner

runner = ConversationRunner()
print(runner.path, flush=True)
runner.play(Conversation("endless", "", "made: block 100", "made: fork 100; block 100"), TCP)
"""


def playersOf(path: str) -> list[int]:
    """Return the PIDs of a runner's players and their children, found by their output folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.readlink(entry / "fd" / "1").startswith(path):
                found.append(int(entry.name))
        except OSError:
            continue  # it has just ended
    return found


def waitFor(condition: Callable[[], object], seconds: float = 60.0) -> bool:
    """Wait for a condition; return whether it was met."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class PlayTests(SynchronousTestCase):
    slowBecause = "starts processes, which import a reactor"

    def play(
        self, client: str, server: str, reactor: str = "epoll", via: Via = Via.DIRECT
    ) -> ConversationRun:
        return theRunner().play(Conversation("played", "", client, server, via=via), TCP, reactor)

    def calls(self, run: ConversationRun, end: str) -> tuple[str, ...]:
        """Return the calls of an end's only connection."""
        [seen] = run.views[end].connections
        return seen.calls

    def test_playersRunOnRequestedReactors(self) -> None:
        for name, module in REACTORS.items():
            run = self.play("made: write 300kB; lose", "lost: stop", name)
            self.assertEqual(complaintsAboutTCP([run]), [])
            for entries in run.entries.values():
                [runs] = [entry.about for entry in entries if entry.kind == transcript.RUNS]
                self.assertTrue(
                    hasattr(sys.modules.get(module) or __import__(module, fromlist=[""]), runs), name
                )

    def test_killed(self) -> None:
        """The steps of a process before SIGKILL are recorded, up to the last one."""
        run = self.play("made: write 5; write 5; kill", "lost: stop")
        client = [(entry.kind, entry.about) for entry in run.entries["client"]]
        self.assertEqual(client[-3:], [("wrote", "10"), ("does", "kill"), ("ended", "SIGKILL")])

    def test_exitOfProcessIsRecorded(self) -> None:
        ended = {
            via: self.play(f"made: settle; {via}", "lost: stop").views["client"].ended
            for via in ("stop", "term", "kill", "exit")
        }
        self.assertEqual(ended, {"stop": "exit 0", "term": "exit 0", "kill": "SIGKILL", "exit": "exit 0"})

    def test_cues(self) -> None:
        """An event reaches the other end, and is set automatically when a process has ended."""
        run = self.play(
            "made: await go; write 5; lose", "made: settle; event go; pause; await peer-ended; resume"
        )
        server = run.entries["server"]
        client = run.entries["client"]
        event = next(entry.at for entry in server if entry.kind == transcript.EVENT)
        wrote = next(entry.at for entry in client if entry.kind == transcript.WROTE)
        ended = next(entry.at for entry in client if entry.kind == transcript.ENDED)
        received = next(entry.at for entry in server if entry.kind == transcript.DATA)
        self.assertEqual(sorted([event, wrote, ended, received]), [event, wrote, ended, received])

    def test_stoppedProcessContinuesAfterItsTime(self) -> None:
        run = self.play("made: write 5; lose", "made: freeze 0.5")
        server = run.entries["server"]
        frozen = next(entry.at for entry in server if entry.kind == transcript.FREEZES)
        received = next(entry.at for entry in server if entry.kind == transcript.DATA)
        self.assertGreaterEqual(received - frozen, 0.5)
        self.assertEqual(self.calls(run, "server"), ("made", "lost ConnectionDone"))

    def test_forked(self) -> None:
        """The end of a process is recorded although its child lives, and the child ends with the play."""
        run = self.play("made: fork 100; settle; exit", "made: await peer-ended; stop")
        self.assertEqual({view.ended for view in run.views.values()}, {"exit 0"})
        self.assertTrue(waitFor(lambda: not playersOf(theRunner().path)))

    def test_tls(self) -> None:
        """With TLS, both ends report the transport below."""
        run = self.play("made: write 300kB; lose", "lost: stop", via=Via.TLS)
        self.assertEqual(complaintsAboutTCP([run]), [])
        self.assertEqual(run.views["server"].connections[0].received, 300_000)

    def test_proxyForwardsEverythingAndEndsLast(self) -> None:
        for via in (Via.NEAR_PROXY, Via.FAR_PROXY):
            run = self.play("made: write 300kB; lose", "lost: stop", via=via)
            self.assertEqual(complaintsAboutTCP([run]), [])
            self.assertEqual(run.views["server"].connections[0].received, 300_000)
            self.assertIn("300000 bytes forwards", run.logs["proxy"])

    def test_exceptionOfPlayerIsInItsLog(self) -> None:
        run = self.play("made: write 5", "data: raise")
        self.assertIn("Mistake: as the script says", run.logs["server"])

    def test_endlessPlayIsEndedWithItsProcesses(self) -> None:
        self.patch(runnerModule, "PATIENCE", 0.02)
        run = self.play("made: block 100", "made: wait 100")
        self.assertEqual({view.ended for view in run.views.values()}, {transcript.OUT_OF_TIME})
        self.assertTrue(waitFor(lambda: not playersOf(theRunner().path)))


class ForeignPluginTests(SynchronousTestCase):
    """Plugins of other projects are installed."""

    slowBecause = "starts processes, which import a reactor"

    def runner(self, plugin: str) -> ConversationRunner:
        """Return a runner whose forkserver finds a plugin of another project."""
        folder = self.mktemp()
        plugins = Path(folder, "twisted", "plugins")
        plugins.mkdir(parents=True)
        (plugins / "foreign.py").write_text(plugin)
        before = os.environ.get("PYTHONPATH")
        self.addCleanup(os.environ.__delitem__, "PYTHONPATH")
        if before is not None:
            self.addCleanup(os.environ.__setitem__, "PYTHONPATH", before)
        paths = [os.path.abspath(folder), *([before] if before else [])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        runner = ConversationRunner()
        self.addCleanup(runner.close)
        return runner

    def test_installsReactor(self) -> None:
        """Players use the ordered reactor, although a plugin imports the default one, as autobahn's."""
        runner = self.runner(
            "from twisted.internet import reactor\n"
            "from twisted.internet.endpoints import _TLSClientEndpointParser\n"
            "foreign = _TLSClientEndpointParser()\n"
        )
        run = runner.play(Conversation("played", "", "made: write 5; lose", "lost: stop"), TCP, "asyncio")
        self.assertEqual({view.ended for view in run.views.values()}, {"exit 0"})


class EndTests(SynchronousTestCase):
    """The runner leaves nothing, whatever happens to it."""

    slowBecause = "starts processes, and waits for their ends"

    def test_closedRunnerEndsItsPlays(self) -> None:
        runner = ConversationRunner()
        raised: list[BaseException] = []

        def play() -> None:
            try:
                runner.play(Conversation("endless", "", "made: block 100", "made: block 100"), TCP)
            except Closed as error:
                raised.append(error)

        thread = threading.Thread(target=play)
        thread.start()
        self.assertTrue(waitFor(lambda: len(playersOf(runner.path)) == 2))
        runner.close()
        thread.join()
        self.assertEqual(len(raised), 1)
        self.assertTrue(waitFor(lambda: not playersOf(runner.path)))
        self.assertFalse(os.path.exists(runner.path))

    def test_forkserverCannotStart(self) -> None:
        """A play fails as soon as the forkserver has ended, and closing the runner does not fail."""
        self.patch(runnerModule, "_FORKSERVER", "txrdma.no_such_module")
        runner = ConversationRunner()
        conversation = Conversation("played", "", "made: lose", "lost: stop")
        self.assertRaises(ForkserverEnded, runner.play, conversation, TCP)
        self.assertRaises(ForkserverEnded, runner.play, conversation, TCP)
        runner.close()
        self.assertFalse(os.path.exists(runner.path))

    def _endedBy(self, how: signal.Signals) -> None:
        """End a process with an endless play; return whether anything remains."""
        command = [sys.executable, "-c", ENDLESS]
        quiet = subprocess.DEVNULL
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=quiet, cwd=CHECKOUT) as process:
            assert process.stdout is not None
            path = process.stdout.readline().decode().strip()
            self.assertTrue(waitFor(lambda: len(playersOf(path)) == 3))
            process.send_signal(how)
        self.assertTrue(waitFor(lambda: not playersOf(path)))
        self.assertTrue(waitFor(lambda: not os.path.exists(path)))

    def test_killed(self) -> None:
        """When the runner's process is killed, so are all players and their children."""
        self._endedBy(signal.SIGKILL)

    def test_interruptEndsEverything(self) -> None:
        self._endedBy(signal.SIGINT)
