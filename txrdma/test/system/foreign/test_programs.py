"""
Third-party programs between two processes: clients get the same results over C{smc:} as over C{tcp:}.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.test.system.foreign.playing import differences, play
from txrdma.test.system.foreign.programs.catalogue import missing, programs
from txrdma.testing.streams.provider import Provider, ROCEV2, SHARED_MEMORY, TCP


class ProgramComparison(SynchronousTestCase):
    """Compares the results of a program's client over TCP and over other routes."""

    slowBecause = "each program runs in two processes for each route, and some wait for their timeouts"

    def compare(self, name: str, routes: Sequence[Provider]) -> None:
        """Run a program over TCP and over each route, concurrently."""
        if absent := missing(programs()[name]):
            raise SkipTest(f"needs {', '.join(absent)}, which is not installed")
        with ThreadPoolExecutor() as threads:
            overTCP, *others = threads.map(lambda provider: play(name, provider), (TCP, *routes))
        for route, played in zip(routes, others, strict=True):
            found = differences(played, overTCP, route)
            if found:  # a timeout on a busy machine may be the cause: only repeated differences count
                print(f"{name} over {route.name} is played again, beside TCP: {found}")
                found = differences(play(name, route), play(name, TCP), route)
            self.assertEqual(found, [], route.name)


class ProgramsTests(ProgramComparison):
    """Each program over one of the routes; L{txrdma.test.soak.foreign.test_programs} uses both."""


def addProgram(case: type[ProgramComparison], name: str, *routes: Provider) -> None:
    def test(self: ProgramComparison) -> None:
        self.compare(name, routes)

    test.__doc__ = f"C{{{name}}} has the same results as over TCP."
    setattr(case, f"test_{name.replace('.', '_')}", test)


for _number, _name in enumerate(programs()):
    addProgram(ProgramsTests, _name, (SHARED_MEMORY, ROCEV2)[_number % 2])
