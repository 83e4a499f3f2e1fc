"""
C{txrdma rping} between two hosts by IPv6: C{python -m txrdma.test.support.cm.linklocal}.

It must run in a new network namespace. It prints the output of the client for each address of the server.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing

from txrdma.test.support.namespaces import TwoHosts

ADDRESSES = (("2001:db8::1", "2001:db8::1"), ("fe80::1%a0", "fe80::1%b0"))
"""The address of the server, with the zone of each host."""


def main() -> None:
    """Run a server and a client for each address."""
    rping = [sys.executable, "-m", "txrdma", "rping"]
    with closing(TwoHosts(("10.79.0",))) as hosts:
        for side, name in enumerate(("a0", "b0")):
            for network in ("2001:db8::", "fe80::"):
                words = f"address add {network}{side + 1}/64 dev {name} nodad"
                hosts.run(side, "ip", *words.split())
        for here, there in ADDRESSES:
            with subprocess.Popen([*rping, "-s", "-d", "-a", here], stderr=subprocess.PIPE) as server:
                assert server.stderr is not None
                try:
                    server.stderr.readline()  # it listens now
                    subprocess.run([*hosts.second, *rping, "-c", "-a", there, "-C", "1", "-v"], timeout=60)
                finally:
                    server.kill()


if __name__ == "__main__":
    main()
