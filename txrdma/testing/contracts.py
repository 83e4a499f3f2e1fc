"""
The promises of txrdma's interfaces, as mixins for test cases.

A provider of an interface inherits the promises, says how to make one, and has its suite. Where a provider
may differ from others, its C{habits} say so (L{txrdma.testing.habits}).
"""

from __future__ import annotations

from txrdma.testing.atomics import AtomicContract, AtomicRefusalContract
from txrdma.testing.descriptions import DescriptionContract
from txrdma.testing.events import PortContract, TellingContract
from txrdma.testing.faults import ProtectionContract, ReceiverContract
from txrdma.testing.lives import EndContract, EventContract, QueueContract, StateContract
from txrdma.testing.migration import MigrationContract
from txrdma.testing.refusals import LimitContract, PostingContract, TransitionContract
from txrdma.testing.shared import SharedReceiveContract, SharedRefusalContract
from txrdma.testing.transfers import DatagramContract, RDMAContract, SendContract


class ConnectionContract(
    SendContract,
    RDMAContract,
    AtomicContract,
    AtomicRefusalContract,
    ProtectionContract,
    ReceiverContract,
    SharedReceiveContract,
    SharedRefusalContract,
    TransitionContract,
    PostingContract,
    LimitContract,
    StateContract,
    QueueContract,
    EventContract,
    TellingContract,
    DescriptionContract,
    EndContract,
):
    """What every L{txrdma.interfaces.IVerbsDevice} promises about reliable connections."""


class VerbsDeviceContract(ConnectionContract, DatagramContract):
    """
    What every L{txrdma.interfaces.IVerbsDevice} promises.

    A suite inherits this and C{SynchronousTestCase}, and implements the first three methods of
    L{txrdma.testing.ends.TwoEnds}. L{PortContract} and L{MigrationContract} ask for more: ports that can be
    taken down, and two of them.
    """


__all__ = ["ConnectionContract", "MigrationContract", "PortContract", "VerbsDeviceContract"]
