"""
Programs that others have written, each over all routes of one host.
"""

from __future__ import annotations

from txrdma.test.system.foreign.programs.catalogue import programs
from txrdma.test.system.foreign.test_programs import addProgram, ProgramComparison
from txrdma.testing.streams.provider import ROCEV2, SHARED_MEMORY


class ProgramsTests(ProgramComparison):
    """Each program over shared memory and over UDP."""


for _name in programs():
    addProgram(ProgramsTests, _name, SHARED_MEMORY, ROCEV2)
