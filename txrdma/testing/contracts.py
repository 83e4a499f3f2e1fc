"""
The promises of txrdma's interfaces, as mixins for test cases.

A provider of an interface inherits the promises, says how to make one, and has its suite.
"""

from __future__ import annotations

from txrdma.testing.faults import ProtectionContract, ReceiverContract
from txrdma.testing.lives import EndContract, EventContract, QueueContract, StateContract
from txrdma.testing.transfers import DatagramContract, RDMAContract, SendContract


class ConnectionContract(
    SendContract,
    RDMAContract,
    ProtectionContract,
    ReceiverContract,
    StateContract,
    QueueContract,
    EventContract,
    EndContract,
):
    """What every L{txrdma.interfaces.IVerbsDevice} promises about reliable connections."""


class VerbsDeviceContract(ConnectionContract, DatagramContract):
    """
    What every L{txrdma.interfaces.IVerbsDevice} promises.

    A suite inherits this and C{SynchronousTestCase}, and implements the first three methods of
    L{txrdma.testing.ends.TwoEnds}.
    """
