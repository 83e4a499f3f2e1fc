"""
Processes at one address, of which many are killed.
"""

from __future__ import annotations

from txrdma.test.system.cm import test_sharing


class SharingTests(test_sharing.SharingTests):
    """As many questions and kills as a busy host has in some minutes."""

    clients = 10
    questions = 400
    kills = 60
