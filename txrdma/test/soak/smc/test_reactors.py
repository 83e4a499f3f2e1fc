"""
Twisted's own tests of stream transports over C{smc}, on the reactors that are not the default one.
"""

from __future__ import annotations

from txrdma.test.integration.smc.test_reactors import testCaseClasses

globals().update(
    testCaseClasses(
        __name__,
        "twisted.internet.selectreactor.SelectReactor",
        "twisted.internet.pollreactor.PollReactor",
        "twisted.internet.test.reactormixins.AsyncioSelectorReactor",
    )
)
