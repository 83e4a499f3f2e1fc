"""
Ten thousand clients that connect, propose, and send nothing more.
"""

from __future__ import annotations

from txrdma.test.integration.smc import test_options


class ThousandsTests(test_options.FloodTests):
    """Thousands of clients, where the integration tests have hundreds."""

    proposals = 10_000
    names = 2000
    slowBecause = "Ten thousand handshakes are simulated at once."
