"""
Recorded conversations of SMC, and the explanations of them that tests look at.
"""

from __future__ import annotations

from txrdma.commands.dissect.capture import Explanation
from txrdma.iba.captures import Captured, captured
from txrdma.test.support import VECTORS

OURS = ("ours-client", "ours-server")
"""Recorded conversations of our stack, in either role, with the kernel's."""

SMC = ("first", "second", "wrap", "halfclose", "abort", "urgent", "test-link", "two-links", *OURS)
"""Recorded conversations by SMC-Rv2."""


def packets(name: str) -> list[Captured]:
    with open(VECTORS / f"{name}.pcap", "rb") as file:
        return list(captured(file))


def explained(many: list[Captured]) -> Explanation:
    explanation = Explanation()
    for packet in many:
        explanation.add(packet)
    return explanation


def reported(name: str, level: int = 2) -> str:
    return "\n".join(explained(packets(name)).lines(level))
