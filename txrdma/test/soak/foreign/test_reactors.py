"""
Suites that were not written here, over C{smc:} on every reactor but the default one.

L{txrdma.test.system.foreign.test_suites} runs them on the default one.
"""

from __future__ import annotations

from typing import Final

from txrdma.test.system.foreign import test_suites

REACTORS: Final = ("select", "poll", "asyncio")


class SuitesTests(test_suites.SuiteComparison):
    """Twisted's suites and treq's, on other reactors."""


class PlainTests(test_suites.PlainComparison):
    """The plain suite, on other reactors."""


for _reactor in REACTORS:
    test_suites.addSuites(SuitesTests, _reactor)
    test_suites.addPlain(PlainTests, _reactor)
