"""
Contracts of txrdma's interfaces, as mixins for test cases.

The suite of an implementation inherits a contract and defines how to create the object under test. Permitted
differences between implementations are declared in C{quirks} (L{txrdma.testing.verbs.quirks}).
"""

from __future__ import annotations

from txrdma.testing.mad.ports import MADPortContract
from txrdma.testing.messages import AtomicMemoryContract, MessageContract, RemoteMemoryContract
from txrdma.testing.verbs.atomics import AtomicContract, AtomicRefusalContract
from txrdma.testing.verbs.descriptions import DescriptionContract
from txrdma.testing.verbs.events import PortContract, PortEventContract, QueueEventContract
from txrdma.testing.verbs.faults import ProtectionContract, ReceiverContract
from txrdma.testing.verbs.lifecycle import EndContract, EventContract, QueueContract, StateContract
from txrdma.testing.verbs.migration import MigrationContract
from txrdma.testing.verbs.refusals import LimitContract, PostingContract, TransitionContract
from txrdma.testing.verbs.sharedreceives import SharedReceiveContract, SharedRefusalContract
from txrdma.testing.verbs.transfers import DatagramContract, RDMAContract, SendContract


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
    QueueEventContract,
    DescriptionContract,
    EndContract,
):
    """The promises of every L{txrdma.interfaces.IVerbsDevice} about reliable connections."""


class VerbsDeviceContract(ConnectionContract, DatagramContract):
    """
    The promises of every L{txrdma.interfaces.IVerbsDevice}, as a suite.

    A suite inherits this and C{SynchronousTestCase}, and implements the first three methods of
    L{txrdma.testing.verbs.ends.TwoEnds}. L{PortContract} also requires ports that can be taken down, and
    L{MigrationContract} two ports for each device.
    """


__all__ = [
    "AtomicMemoryContract",
    "ConnectionContract",
    "MADPortContract",
    "MessageContract",
    "MigrationContract",
    "PortContract",
    "PortEventContract",
    "RemoteMemoryContract",
    "VerbsDeviceContract",
]
