"""
Third-party programs between two processes: clients get the same results over C{smc:} as over C{tcp:}.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.test.system.foreign.playing import differences, play
from txrdma.test.system.foreign.programs.catalogue import missing, MODULES, programs
from txrdma.testing.streams.provider import Provider, ROCEV2, SHARED_MEMORY, TCP


class ProgramComparison(SynchronousTestCase):
    """Compares the results of programs' clients over TCP and over other routes."""

    slowBecause = "programs run in two processes for each route, and some wait for their timeouts"

    def compare(self, module: str, routes: Sequence[Provider]) -> None:
        """Run the programs of a module over TCP and over each route, concurrently."""
        every = {name: each for name, each in programs().items() if name.startswith(f"{module}.")}
        names = [name for name, each in every.items() if not missing(each)]
        if not names:
            raise SkipTest("what its programs need is not installed")
        with ThreadPoolExecutor() as threads:
            overTCP, *others = threads.map(lambda provider: play(names, provider), (TCP, *routes))
        for route, played in zip(routes, others, strict=True):
            found = differences(played, overTCP, route, names)
            if found:  # a timeout on a busy machine may be the cause: only repeated differences count
                print(f"{module} over {route.name} is played again, beside TCP: {found}")
                found = differences(play(names, route), play(names, TCP), route, names)
            self.assertEqual(found, [], route.name)


class ProgramsTests(ProgramComparison):
    """Each program over one of the routes; L{txrdma.test.soak.foreign.test_programs} uses both."""


def addPrograms(case: type[ProgramComparison], module: str, *routes: Provider) -> None:
    def test(self: ProgramComparison) -> None:
        self.compare(module, routes)

    test.__doc__ = f"The programs of C{{{module}}} have the same results as over TCP."
    setattr(case, f"test_{module}", test)


for _number, _module in enumerate(MODULES):
    addPrograms(ProgramsTests, _module, (SHARED_MEMORY, ROCEV2)[_number % 2])
