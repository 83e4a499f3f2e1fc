"""
SMC's TCP option by this machine's kernel: two TCP sockets, and the packets between them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.smc.signalling.option.reasons import effectiveCapabilities, isOlder, missingCapabilities
from txrdma.test.support.smc import optionworlds
from txrdma.test.support.smc.optionworlds import Facts

PATIENCE = 120.0


class WorldCase(SynchronousTestCase):
    """Runs scenarios of L{optionworlds}, each in a process with its own namespaces and cgroup."""

    if os.geteuid() != 0 or missingCapabilities(effectiveCapabilities()):
        skip = "needs root, with CAP_BPF and CAP_NET_ADMIN"
    elif isOlder(os.uname().release):
        skip = "needs Linux 5.10"

    def facts(self, scenario: str) -> Facts:
        """Return the facts that a scenario finds."""
        words = [sys.executable, "-m", optionworlds.__name__, scenario]
        done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 0, done.stderr)
        facts: Facts = json.loads(done.stdout)
        if "skip" in facts:
            raise SkipTest(facts["skip"])
        return facts


class WireTests(WorldCase):
    """The option is where it was requested, and nowhere else."""

    def test_combinations(self) -> None:
        """SYNs of marked clients have it, and SYN-ACKs of marked listeners to these; both ends detect it."""
        facts = self.facts("combinations")
        for family in ("IPv4", "IPv6"):
            for ends in ("", "client", "listener", "client listener"):
                isClient, isListener = "client" in ends, "listener" in ends
                both = isClient and isListener
                with self.subTest(family=family, ends=ends):
                    found = facts[f"{family} {ends}".strip()]
                    self.assertEqual(found["wire"], [isClient, both])
                    self.assertEqual(found["seen"], [both, both])
                    self.assertEqual(found["saved"], both)
                    self.assertTrue(found["works"])
        expected = {"synsMarked": 4, "synAcksMarked": 2, "synAcksSeen": 2, "synsSeen": 2}
        self.assertEqual(facts["counters"], expected)

    def test_savedSYN(self) -> None:
        """An unmarked listener detects a SYN's option by TCP_SAVED_SYN, once, and answers without it."""
        facts = self.facts("savedSYN")
        self.assertEqual(facts["marked"], [True, False, False])
        self.assertEqual(facts["unmarked"], [False, False, False])
        self.assertEqual(facts["wire"], [True, False, False, False])

    def test_others(self) -> None:
        """
        Another program that is called for every segment keeps its calls, and its sockets have no option.

        Its own listener does not answer a SYN with the option, though our program is called as well.
        """
        facts = self.facts("others")
        expected = {"none": [False, False], "client": [True, False], "both": [True, True]}
        for name, wire in expected.items():
            with self.subTest(name):
                found = facts[name]
                self.assertEqual(found["wire"], wire)
                self.assertEqual(found["seen"], [all(wire), all(wire)])
                self.assertTrue(found["works"])
                self.assertTrue(found["called"])

    def test_established(self) -> None:
        """No program is called for segments of established or unmarked connections."""
        self.assertEqual(self.facts("quiet"), {"unmarked": [False, 0], "marked": [True, 0]})

    def test_cookies(self) -> None:
        """With SYN cookies the SYN-ACK has no option, so that both ends use TCP."""
        facts = self.facts("cookies")
        self.assertEqual(facts, {"wire": [True, False], "seen": [False, False], "saved": 0, "works": True})

    def test_swallowed(self) -> None:
        """A SYN that was sent twice without an answer is repeated without the option."""
        self.assertEqual(self.facts("swallowed"), {"wire": [True, True, False]})

    def test_answeredAgain(self) -> None:
        """A repeated SYN-ACK has the option, and both ends detect it."""
        facts = self.facts("answeredAgain")
        self.assertGreaterEqual(len(facts["answers"]), 2)
        self.assertEqual(set(facts["answers"]), {True})
        self.assertEqual((facts["seen"], facts["works"]), ([True, True], True))


class MemoryTests(WorldCase):
    """A closed socket leaves nothing."""

    def test_many(self) -> None:
        """2,000 connections and their listener leave no storage, and no listener is counted any more."""
        facts = self.facts("many")
        self.assertEqual((facts["seen"], facts["listeners"], facts["stored"]), (4000, [1, 0], 0))
        self.assertEqual(set(facts["counters"].values()), {2000})

    def test_forget(self) -> None:
        """A forgotten connection keeps nothing; a listener refuses to be forgotten."""
        facts = self.facts("forgetting")
        self.assertEqual(facts["stored"], [[True, True], [False, False]])
        self.assertEqual((facts["saved"], facts["works"], facts["refused"]), (0, True, "InvalidRequest"))


class InstalledTests(WorldCase):
    """The program is installed once, for users who cannot load it."""

    def test_users(self) -> None:
        """Users of the group can use but not remove it; other users and cgroups get the reason."""
        facts = self.facts("users")
        friend = facts["friend"]
        self.assertEqual((friend["seen"], friend["removed"]), ([True, True], False))
        status = friend["status"]
        self.assertEqual((status["mode"], status["isUsable"], status["cgroup"]), ("0660", True, None))
        self.assertEqual(set(status["counters"].values()), {1})
        self.assertIn("--group", facts["stranger"]["why"])
        self.assertIn("lacks CAP_BPF and CAP_NET_ADMIN", facts["stranger"]["why"])
        self.assertIn("already installed at", facts["again"])
        self.assertIn("not attached to a cgroup of this process", facts["outside"])

    def test_after(self) -> None:
        """After removal, users with open maps get connections without the option."""
        self.assertEqual(self.facts("users")["after"], [False, True, False])

    def test_places(self) -> None:
        """A missing cgroup is reported; an existing BPF file system remains mounted after removal."""
        facts = self.facts("places")
        self.assertIn("its cgroup is gone", facts["gone"])
        self.assertEqual((facts["stranger"], facts["left"], facts["stays"]), (True, [], True))

    def test_capabilities(self) -> None:
        """A process with exactly CAP_BPF and CAP_NET_ADMIN loads it for itself."""
        facts = self.facts("capabilities")
        self.assertEqual(facts["both"], {"seen": [True, True]})
        self.assertIn("this process lacks CAP_NET_ADMIN", facts["bpf"]["why"])
        self.assertIn("this process lacks CAP_BPF", facts["network"]["why"])

    def test_command(self) -> None:
        """The command installs, shows and removes it, and leaves nothing, even after a failure."""
        facts = self.facts("commands")
        self.assertIn("nothing is installed at", facts["before"])
        self.assertIn("txrdma smc-option: nothing is installed at", facts["removed early"])
        self.assertIn("is not a cgroup of version 2", facts["nowhere"])
        self.assertIn(facts["cgroup"], facts["installed"])
        status = facts["status"]
        self.assertEqual((status["cgroup"], status["mode"], status["why"]), (facts["cgroup"], "0600", ""))
        self.assertTrue(status["isInstalled"] and status["isUsable"])
        self.assertEqual(set(status["counters"].values()), {1})
        self.assertIn("nothing is installed at", facts["removed"])
        self.assertEqual(facts["left"], [])
        self.assertIn("name another directory", facts["taken"])
        self.assertEqual(facts["left then"], ["taken"])
