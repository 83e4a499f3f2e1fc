"""An application that raises affects only its own connection, over every transport."""

from __future__ import annotations

from random import randrange

from twisted.trial.unittest import TestCase

from txrdma.testing.bystanders import BystanderContract


class TCPTests(BystanderContract, TestCase):
    """TCP, which verifies the contract itself."""

    LISTEN, CONNECT = "tcp:0:interface=127.0.0.1", "tcp:127.0.0.1:{port}"
    MAY_STAY = MAY_RAISE = True


class SharedMemoryTests(BystanderContract, TestCase):
    """SMC-R by shared memory: both connections share a link group."""

    LISTEN, CONNECT = "smc:127.0.0.1:0", "smc:127.0.0.1:{port}"


class RoCETests(BystanderContract, TestCase):
    """SMC-R by software RoCE: both connections share a link group."""

    LISTEN = r"smc:127.0.0.1:0:device=soft\:route\=rocev2"
    CONNECT = r"smc:127.0.0.1:{port}:device=soft\:route\=rocev2"


class RSocketTests(BystanderContract, TestCase):
    """C{rsocket:}: both connections share a device and its completion queue."""

    ADDRESS = f"127.{randrange(2, 250)}.{randrange(2, 250)}.{randrange(2, 250)}"  # no other process has it
    LISTEN, CONNECT = f"rsocket:0:interface={ADDRESS}", f"rsocket:{ADDRESS}:{{port}}:bindAddress={ADDRESS}"


class BTLTests(BystanderContract, TestCase):
    """C{btl:}: both connections share a module."""

    LISTEN, CONNECT = "btl:127.0.0.1:0", "btl:127.0.0.1:{port}"
