"""
Captures of SMC-R connections, and the explanations of C{txrdma dissect} for them.
"""

from __future__ import annotations

from txrdma.commands.dissect.capture import Explanation
from txrdma.iba.captures import Captured, captured
from txrdma.test.support import VECTORS

OURS = ("ours-client", "ours-server")
"""Captures between txrdma and the Linux kernel, with txrdma in either role."""

SMC = ("first", "second", "wrap", "halfclose", "abort", "urgent", "test-link", "two-links", *OURS)
"""Captures of SMC-Rv2 connections."""


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
