"""Connections of a process whose system's clock, which Twisted's reactors use, is set."""

from __future__ import annotations

from txrdma.test.support.btl.hosts import HostsCase, ORDERED, TAG
from txrdma.testing.smc.hosts import Host

HOUR = 3600.0


class SetBackTests(HostsCase):
    def setBack(self, host: Host, seconds: float) -> None:
        """Set the clock of a host back: delayed calls that wait are made later by that, as by reactors."""
        before = host.seconds
        self.patch(host, "seconds", lambda: before() - seconds)
        for call in self.world.clock.calls:
            if getattr(getattr(call.func, "__self__", None), "_host", None) is host:
                call.delay(seconds)
        self.world.clock.calls.sort(key=lambda call: call.getTime())

    def test_lost(self) -> None:
        """A message that is lost before or after the clock is set back is sent again soon."""
        for isBefore in (True, False):
            client, server = self.connected()
            self.outcome(client.transport.send(TAG, b"first"))
            for _each in range(2):
                if not isBefore:
                    self.setBack(self.hosts[0], HOUR)
                self.world.network.drop(lambda packet: True, 1)
                lost = client.transport.send(ORDERED, b"lost")
                self.pause(1e-6)
                if isBefore:
                    self.setBack(self.hosts[0], HOUR)
                self.outcome(client.transport.send(TAG, b"further"), 5.0)
                self.outcome(lost, 5.0)
            self.close(client, server)

    def test_alone(self) -> None:
        """The only message of a connection is sent again when its peer sends something."""
        client, server = self.connected()
        self.world.network.drop(lambda packet: True, 1)
        lost = client.transport.send(ORDERED, b"lost")
        self.pause(1e-6)
        self.setBack(self.hosts[0], HOUR)
        self.outcome(server.transport.send(TAG, b"wake"))
        self.outcome(lost, 5.0)
        self.close(client, server)
