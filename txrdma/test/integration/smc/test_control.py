"""
The control sockets by which processes report their connections to tools of the same user.
"""

from __future__ import annotations

import os
import socket

from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.common.reactoruse import reactorUse
from txrdma.smc.status import control as introspection
from txrdma.smc.status.control import answer, answering, appear, controlName
from txrdma.test.support.smc.control import NAMESPACE


class InternalReactor(MemoryReactorClock):
    """A reactor with internal readers, like all of Twisted's real reactors."""

    def __init__(self) -> None:
        super().__init__()
        self._internalReaders: set[introspection.ControlSocket] = set()


class ListingTests(SynchronousTestCase):
    """Control sockets, and the processes that are found in the kernel's list of UNIX sockets."""

    def test_listing(self) -> None:
        """
        Listening sockets of this user are found, once for each process; connected and other users' sockets
        are not.
        """
        mine = f"@txrdma/control/{os.geteuid()}"
        listing = f"""\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 26543 {mine}/77
0000000000000000: 00000003 00000000 00000000 0001 03 26544 {mine}/77
0000000000000000: 00000003 00000000 00000000 0001 03 26545 {mine}/78
0000000000000000: 00000002 00000000 00010000 0001 01 26546 @txrdma/control/{os.geteuid() + 1}/79
0000000000000000: 00000002 00000000 00010000 0001 01 26547 /run/x @txrdma
0000000000000000: 00000002 00000000 00010000 0001 01 26548 {mine}/5
0000000000000000: 00000002 00000000 00010000 0001 01 26549 {mine}/5x
0000000000000000: 00000003 00000000 00000000 0001 03 26550
"""
        self.assertEqual(answering(listing), [5, 77])

    def test_reactorWithoutSockets(self) -> None:
        """A reactor without UNIX sockets gets no control socket."""
        self.assertIs(answer(object(), dict), None)

    def test_name(self) -> None:
        """The socket has an abstract name, which contains the user and the process."""
        self.assertEqual(controlName(77), f"\0txrdma/control/{os.geteuid()}/77")

    def test_once(self) -> None:
        """
        Repeated calls of C{appear} create one control socket, an internal reader, as soon as the reactor
        runs.
        """
        self.patch(introspection, "NAMESPACE", NAMESPACE)
        memory = InternalReactor()
        appear(memory, dict)
        use = reactorUse(memory).hold()
        appear(memory, dict)
        [sentinel] = memory.getReaders()
        memory.run()
        [control] = memory._internalReaders
        self.assertEqual({*memory.getReaders()}, {sentinel, control})
        self.assertIn(os.getpid(), answering())
        use.release()
        self.assertEqual(memory.getReaders(), [])
        self.assertNotIn(os.getpid(), answering())

    def test_newOwner(self) -> None:
        """A process that has changed its user answers at its new name, and no longer at the old one."""
        self.patch(introspection, "NAMESPACE", NAMESPACE)
        memory = InternalReactor()
        self.addCleanup(reactorUse(memory).hold().release)
        appear(memory, dict)
        memory.run()
        old = controlName(os.getpid())
        user = os.geteuid() + 1
        self.patch(os, "geteuid", lambda: user)
        appear(memory, dict)
        memory.run()
        [control] = memory._internalReaders
        self.assertEqual(control.owner, (os.getpid(), user))
        with socket.socket(socket.AF_UNIX) as asker:
            self.assertRaises(ConnectionRefusedError, asker.connect, old)
            asker.connect(controlName(os.getpid()))

    def test_noInternals(self) -> None:
        """A reactor without internal readers gets no control socket."""
        memory = MemoryReactorClock()
        appear(memory, dict)
        self.assertEqual(memory.getReaders(), [])
