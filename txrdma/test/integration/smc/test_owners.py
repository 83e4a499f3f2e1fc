"""
Addresses of TCP sockets, and the owners of these sockets.
"""

from __future__ import annotations

import errno
import os
import socket
import struct

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import WireError
from txrdma.smc.signalling import owners
from txrdma.smc.signalling.owners import (
    acceptingUsers,
    peerUserByTCP,
    socketUser,
    sourceFor,
    TCPAddress,
)


class RealSocketTests(SynchronousTestCase):
    """Real sockets, and what the kernel reports about them."""

    def listen(self, family: socket.AddressFamily, host: str) -> TCPAddress:
        listener = socket.socket(family)
        self.addCleanup(listener.close)
        listener.bind((host, 0))
        listener.listen()
        return TCPAddress.of(host, listener.getsockname()[1])

    def check(self) -> None:
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            place = self.listen(family, host)
            self.assertEqual(acceptingUsers(place), {os.geteuid()})
            with socket.create_connection((host, place.port)) as client:
                own = TCPAddress.of(*client.getsockname()[:2])
                self.assertEqual(socketUser(own, place), os.geteuid())
                self.assertIsNone(socketUser(own, place._replace(port=1)))
                self.assertEqual(peerUserByTCP(place, own, True), os.geteuid())
                self.assertEqual(peerUserByTCP(own, place, False), os.geteuid())

    def test_bothEndsBelongToSameUser(self) -> None:
        self.check()

    def test_bothEndsBelongToSameUserByProcNetTCP(self) -> None:
        def refuse(*arguments: object) -> None:
            raise OSError(errno.ENOENT, "no such module")

        self.patch(owners, "_query", refuse)
        self.check()

    def test_wildcardListenerIsFoundForIPv4UnlessIPv6Only(self) -> None:
        for only in (0, 1):
            listener = socket.socket(socket.AF_INET6)
            self.addCleanup(listener.close)
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
            listener.bind(("::", 0))
            listener.listen()
            port = listener.getsockname()[1]
            mine = {os.geteuid()}
            self.assertEqual(acceptingUsers(TCPAddress("::1", port)), mine)
            self.assertEqual(acceptingUsers(TCPAddress("127.0.0.1", port)), set() if only else mine)
            if not only:
                with socket.create_connection(("127.0.0.1", port)) as client:
                    own = TCPAddress.of(*client.getsockname())
                    self.assertEqual(socketUser(own, TCPAddress("127.0.0.1", port)), os.geteuid())

    def test_invalidAnswerIsIgnored(self) -> None:
        place = self.listen(socket.AF_INET, "127.0.0.1")
        for error in (WireError("netlink message", 0, "cut off"), struct.error("short")):

            def ask(*arguments: object, error: Exception = error) -> None:
                raise error

            self.patch(owners, "_query", ask)
            self.assertEqual(acceptingUsers(place), {os.geteuid()})

    def test_onlyAddressesOfThisHostHaveSource(self) -> None:
        self.assertEqual(sourceFor(TCPAddress("127.0.0.1", 80)), TCPAddress("127.0.0.1", 0))
        self.assertEqual(sourceFor(TCPAddress("127.0.0.9", 80)), TCPAddress("127.0.0.1", 0))
        self.assertEqual(sourceFor(TCPAddress("::1", 80)), TCPAddress("::1", 0))
        self.assertIsNone(sourceFor(TCPAddress("192.0.2.1", 80)))
        self.assertIsNone(sourceFor(TCPAddress("2001:db8::1", 80)))
