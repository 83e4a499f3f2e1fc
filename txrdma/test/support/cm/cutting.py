"""
A transfer between two hosts whose networks are cut: C{python -m txrdma.test.support.cm.cutting MEBIBYTES}.

It must run in a new network namespace, which becomes the server's. It prints the results of both ends as
JSON: see L{txrdma.test.support.cm.migrating}.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing

from txrdma.test.support.namespaces import TwoHosts

NETWORKS = ("10.78.0", "10.78.1")


def main(mebibytes: str) -> None:
    """Run both ends, and cut and restore networks as the client requests."""
    server, client = (",".join(f"{network}.{side}" for network in NETWORKS) for side in (1, 2))
    command = [sys.executable, "-m", "txrdma.test.support.cm.migrating"]
    cuts, results = [], []
    with (
        closing(TwoHosts(NETWORKS)) as hosts,
        subprocess.Popen(
            [*command, "server", server, client, mebibytes], stdout=subprocess.PIPE, text=True
        ) as serving,
    ):
        assert serving.stdout is not None
        serving.stdout.readline()
        with subprocess.Popen(
            [*hosts.second, *command, "client", client, server, mebibytes, "wire"],
            stdout=subprocess.PIPE,
            text=True,
        ) as asking:
            assert asking.stdout is not None
            for line in asking.stdout:
                match line.split():
                    case ["add" | "del" as action, number]:
                        hosts.silence(int(number), action)
                        cuts += [int(number)] if action == "add" else []
                    case words:
                        results.append(words)
        results.append(serving.stdout.readline().split())
    print(json.dumps({"cuts": cuts, "ends": results}))


if __name__ == "__main__":
    main(*sys.argv[1:])
