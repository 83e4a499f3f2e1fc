"""
Programs that others have written, between two processes: over C{smc:} clients see what they see over C{tcp:}.
"""

from __future__ import annotations

from typing import Final

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.test.system.foreign.playing import differences, play
from txrdma.test.system.foreign.programs.catalogue import missing, programs
from txrdma.testing.streams.provider import ROCEV2, SHARED_MEMORY, TCP

ROUTES: Final = (SHARED_MEMORY, ROCEV2)


class ProgramsTests(SynchronousTestCase):
    """Each program over two routes; the same by C{python -m txrdma.test.system.foreign.programs}, for all
    routes."""

    def compare(self, name: str) -> None:
        """Play a program over TCP, and over each route."""
        if absent := missing(programs()[name]):
            raise SkipTest(f"needs {', '.join(absent)}, which is not installed")
        overTCP = play(name, TCP)
        for route in ROUTES:
            found = differences(play(name, route), overTCP, route)
            if found:  # a busy machine may have run into a time limit of its own: what differs, differs twice
                print(f"{name} over {route.name} is played again, beside TCP: {found}")
                found = differences(play(name, route), play(name, TCP), route)
            self.assertEqual(found, [], route.name)


def _add(name: str) -> None:
    def test(self: ProgramsTests) -> None:
        self.compare(name)

    test.__doc__ = f"C{{{name}}}, as over TCP."
    setattr(ProgramsTests, f"test_{name.replace('.', '_')}", test)


for _name in programs():
    _add(_name)
