"""Opening and closing connections, modules and devices a thousand times leaves nothing behind."""

from __future__ import annotations

from twisted.trial.unittest import TestCase

from txrdma.test.soak.streams import test_failing_calls as failing
from txrdma.testing.repeating import RepeatedConnectionsContract


class SharedMemoryTests(RepeatedConnectionsContract, TestCase):
    LISTEN, CONNECT = "smc:{there}:0", "smc:{there}:{port}:bindAddress={here}"


class RoCETests(RepeatedConnectionsContract, TestCase):
    LISTEN = r"smc:{there}:0:device=soft\:route\=rocev2"
    CONNECT = r"smc:{there}:{port}:device=soft\:route\=rocev2:bindAddress={here}"


class RsocketTests(RepeatedConnectionsContract, TestCase):
    LISTEN, CONNECT = failing.RSocketTests.LISTEN, failing.RSocketTests.CONNECT


class BTLTests(RepeatedConnectionsContract, TestCase):
    LISTEN, CONNECT = failing.BTLTests.LISTEN, failing.BTLTests.CONNECT


class RDMATests(RepeatedConnectionsContract, TestCase):
    LISTEN, CONNECT = failing.RDMATests.LISTEN, failing.RDMATests.CONNECT


class IBTests(RepeatedConnectionsContract, TestCase):
    LISTEN, CONNECT = failing.IBTests.LISTEN, failing.IBTests.CONNECT


class RsocketRoCETests(RepeatedConnectionsContract, TestCase):
    LISTEN, CONNECT = failing.RoCERSocketTests.LISTEN, failing.RoCERSocketTests.CONNECT


class BTLRoCETests(RepeatedConnectionsContract, TestCase):
    LISTEN, CONNECT = failing.RoCEBTLTests.LISTEN, failing.RoCEBTLTests.CONNECT


class RDMARoCETests(RepeatedConnectionsContract, TestCase):
    LISTEN, CONNECT = failing.RoCERDMATests.LISTEN, failing.RoCERDMATests.CONNECT


class IBRoCETests(RepeatedConnectionsContract, TestCase):
    LISTEN, CONNECT = failing.RoCEIBTests.LISTEN, failing.RoCEIBTests.CONNECT
