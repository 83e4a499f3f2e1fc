"""
Programs that others have written, each over all routes of one host.
"""

from __future__ import annotations

from txrdma.test.system.foreign.programs.catalogue import MODULES
from txrdma.test.system.foreign.test_programs import addPrograms, ProgramComparison
from txrdma.testing.streams.provider import ROCEV2, SHARED_MEMORY


class ProgramsTests(ProgramComparison):
    """Each program over shared memory and over UDP."""


for _module in MODULES:
    addPrograms(ProgramsTests, _module, SHARED_MEMORY, ROCEV2)
