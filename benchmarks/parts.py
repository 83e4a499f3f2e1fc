"""The parts of C{docs/benchmarks.md}, which can be measured and replaced separately."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from benchmarks import btlcases, cases
from benchmarks.measuring import Case, Outcome, run
from benchmarks.report import show
from benchmarks.results import Section, section


@dataclass(frozen=True)
class Part:
    """
    Cases of one table.

    @ivar name: its name on the command line and in the results.
    @ivar about: a paragraph before the table.
    @ivar cases: returns the cases; when quick, with fewer bytes and repetitions.
    @ivar isUnprivileged: whether its processes need no privileges.
    """

    name: str
    title: str
    about: str
    cases: Callable[[bool], list[Case]]
    tested: str = "SMC-R"
    reference: str = "Twisted TCP"
    isUnprivileged: bool = True

    def result(self, outcomes: Sequence[Outcome]) -> Section:
        """Return the section for JSON."""
        return section(self.name, self.title, outcomes, self.tested, self.reference, about=self.about)


PARTS: Final = (
    Part(
        "streams",
        "Streams",
        "Two processes, each on its own core. The written data comes from a fresh source of 64 MiB.",
        cases.streams,
    ),
    Part(
        "programs",
        "Programs at both ends",
        "Two processes as above, which compute between messages: round trips with work, AMP, files by HTTP.",
        cases.programs,
    ),
    Part(
        "busy",
        "On a busy machine",
        "As above, but other processes need the two cores, too: CPU-bound ones, or more clients; or a "
        "control group limits the two processes. No process is bound to a core. Beside two CPU-bound "
        "processes or more, each round has three pairs of processes.",
        cases.busy,
    ),
    Part(
        "connects",
        "Opening, closing and idle connections",
        "Two processes as above. Memory is the growth of the process, including its share of shared "
        "memory, at the end where it is larger. First contacts use new devices, `device=soft` with one "
        "address or two at each end. Over shared memory a link group has one link, as there is no other "
        "path; several links use UDP.",
        cases.comingAndGoing,
    ),
    Part(
        "managed",
        "Connections of the communication manager",
        "Two processes as above, each with a software device. A connection is made by REQ, REP and RTU, and "
        "ended by DREQ and DREP.",
        cases.managed,
    ),
    Part(
        "rsockets",
        "rsocket streams",
        "Two processes as above, each with a software device, and rsockets between them, by `rsocket:` "
        "strings; SMC-R is measured in the same run. TCP is measured with each.",
        cases.rsockets,
        "txrdma",
    ),
    Part(
        "failover",
        "When a link fails",
        "A server streams to a client over UDP, by a link group of two links. Each time the client's "
        "port of the link in use goes down, and comes up again until both links exist. A pause is the "
        "longest time without a byte within 0.3 seconds.",
        cases.failing,
    ),
    Part(
        "verbs",
        "Verbs",
        "Queue pairs of the software device, without SMC-R: two processes as above. Bulk transfers also "
        "use 64 MiB of data; up to 4 MiB are outstanding. Completions are counted in one of the two "
        "processes, on its one core: those that its `CompletionReader` delivers on the polling reactor, "
        "for 64-byte messages that are posted again as they complete, 256 of them outstanding.",
        cases.verbs,
        "software device",
        "Twisted",
    ),
    Part(
        "btl",
        "Messages of the byte transfer layer",
        "Two processes as above, each with a software device at its own loopback address: datagrams use "
        "shared memory, or UDP where stated. Bursts have 256 messages, eight bursts are in flight; with "
        "messages of 1 MiB, 8 MiB. The time ends when the receiver has confirmed that it has everything. "
        "MPI is MPICH, with its TCP provider where stated. Senders are processes that share one core, "
        "each with its own module.",
        btlcases.messages,
        "btl",
        "the other",
    ),
    Part(
        "btl-loss",
        "Messages of the byte transfer layer with packet loss",
        "Two processes as above, in two network namespaces (which requires privileges), joined by a veth "
        "pair with an MTU of 1,500. It loses packets at random in both directions, one by one, since "
        "offloading is off. Messages and writes are of 64 KiB. There is no delay except that of the two "
        "processes, so these figures do not apply to long paths.",
        btlcases.losses,
        "btl",
        "the other",
        isUnprivileged=False,
    ),
)


def measured(found: Sequence[Case], rounds: int, part: Part) -> list[Outcome]:
    """Measure cases of a part, and print each result immediately."""
    outcomes: list[Outcome] = []
    for number, case in enumerate(found, 1):
        print(f"({number} of {len(found)}) {case.title}", flush=True)
        orders = {**case.orders, "isUnprivileged": part.isUnprivileged}
        for outcome in run(replace(case, orders=orders), rounds):
            outcomes.append(outcome)
            show(outcome, part.reference)
    return outcomes
