"""
Programs that others have written, between two processes: over C{smc:} clients see what they see over C{tcp:}.
"""

from __future__ import annotations

from typing import ClassVar

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.test.foreign.playing import differences, play, Played
from txrdma.test.foreign.programs.catalogue import missing, programs
from txrdma.testing.streams.provider import Provider, ROCEV2, SHARED_MEMORY, TCP


class ProgramsTests(SynchronousTestCase):
    """Each program over each route; the same by C{python -m txrdma.test.foreign.programs}, for all routes."""

    _tcp: ClassVar[dict[str, Played]] = {}

    def compare(self, name: str, route: Provider) -> None:
        """Play a program over a route, and over TCP if that has not been done."""
        if absent := missing(programs()[name]):
            raise SkipTest(f"needs {', '.join(absent)}, which is not installed")
        if name not in self._tcp:
            self._tcp[name] = play(name, TCP)
        found = differences(play(name, route), self._tcp[name], route)
        if found:  # a busy machine may have run into a program's own time limits: what differs, differs twice
            print(f"{name} over {route.name} is played again, beside TCP: {found}")
            self._tcp[name] = play(name, TCP)
            found = differences(play(name, route), self._tcp[name], route)
        self.assertEqual(found, [])


def _add(name: str, route: Provider) -> None:
    def test(self: ProgramsTests) -> None:
        self.compare(name, route)

    test.__doc__ = f"C{{{name}}} over {route.name}."
    setattr(ProgramsTests, f"test_{name.replace('.', '_')}_{route.name.replace('-', '_')}", test)


for _name in programs():
    for _route in (SHARED_MEMORY, ROCEV2):
        _add(_name, _route)
