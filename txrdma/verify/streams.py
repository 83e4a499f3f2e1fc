"""Conversations of two processes over streams on the verified devices, compared with C{tcp:}."""

from __future__ import annotations

from typing import Final

from txrdma.testing.streams.catalogue import chosen
from txrdma.testing.streams.matrix import Matrix, USUAL_REACTOR, Verdict
from txrdma.testing.streams.provider import BTL, Provider, RSOCKET
from txrdma.testing.streams.report import failure
from txrdma.testing.streams.runner import ConversationRunner
from txrdma.verify.checks import Check, Outcome, Reporter
from txrdma.verify.subject import Subject
from txrdma.verify.transports import connecting, listening

QUICK: Final = ("client-writes-5", "both-write-300kB", "client-half-closes")
USUAL: Final = (
    *QUICK,
    "both-write-5MB",
    "both-close-at-once",
    "server-aborts",
    "half-closes-with-a-push-producer",
    "paused-while-300kB-comes-and-the-peer-exits",
    "writes-300kB-then-stop",
    "writes-300kB-then-kill",
)
"""Names of conversations."""

_LOOPBACK: Final = "127.0.0.1"
_PATIENCE: Final = 2.0
_CANNOT: Final = {"rsocket": RSOCKET.cannot}


def providersOf(subject: Subject, patience: float = 1.0) -> list[Provider]:
    """Return the streams from the first to the second end of a subject: C{smc:}, C{rsocket:}, C{btl:}."""
    here, there = subject
    # Of a device with several ports, smc: uses the one with the address of the TCP connection.
    address = there.address if there.port > 1 and there.address else _LOOPBACK
    served = {
        "smc": "SMC-R verbs" if there.kernelName else "SMC-R shared-memory",
        "rsocket": RSOCKET.served,
        "btl": BTL.served,
    }
    return [
        Provider(
            kind,
            listen,
            connecting(kind, here, there.address if kind == "rsocket" else address, "{port}"),
            served[kind],
            patience=_PATIENCE * patience,
            cannot=_CANNOT.get(kind, {}),
        )
        for kind, listen in listening(there, address).items()
        if kind in served
    ]


def converse(reporter: Reporter, subject: Subject, isQuick: bool, patience: float) -> None:
    """
    Play conversations over each kind of stream; report differences from C{tcp:}.

    @param patience: factor for time limits. Above 1 the host is slow, so that they are played one at a time,
        and otherwise several.
    """
    conversations = chosen(QUICK if isQuick else USUAL)
    matrix = Matrix(conversations, providersOf(subject, patience), [USUAL_REACTOR], isWhole=True)
    reporter.total(matrix.count)
    runner = ConversationRunner()
    try:
        jobs = 1 if patience > 1 else None
        matrix.play(runner, lambda verdict: reporter.check(_checkOf(verdict)), jobs)
    finally:
        runner.close()


def _checkOf(verdict: Verdict) -> Check:
    name, seconds = f"{verdict.provider.name}/{verdict.conversation.name}", verdict.ours.seconds
    if verdict.passed:
        return Check("streams", name, Outcome.PASSED, seconds=seconds)
    text, detail = str(verdict.complaints[0]), failure(verdict, logs=True)
    return Check("streams", name, Outcome.FAILED, text, detail, seconds)
