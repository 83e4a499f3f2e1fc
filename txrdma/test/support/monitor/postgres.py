"""A PostgreSQL server for tests, without a port or password, that ends with the process."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import time
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from pwd import getpwnam

PATIENCE_SECONDS = 30.0
_numbers = count(1)


def programs() -> Path | None:
    """Return the folder of the server's programs, the newest of Debian's or that in PATH, or None."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: float(path.parts[-3]))
    inPath = shutil.which("postgres")
    if found:
        return found[-1].parent
    return Path(inPath).parent if inPath and shutil.which("initdb") else None


def why() -> str:
    """Return the reason why no server can be started; C{""} if one can."""
    if find_spec("psycopg") is None:
        return "psycopg is not installed: pip install 'txrdma[postgres]'"
    return "" if programs() else "PostgreSQL is not here: apt-get install postgresql"


class Postgres:
    """A server that ends with the process."""

    def __init__(self, *, isDurable: bool = False) -> None:
        """@param isDurable: transactions that were committed survive L{kill}."""
        folder = programs()
        assert folder is not None
        self.folder = Path(tempfile.mkdtemp(prefix="txrdma-postgres-"))
        self._user = None if os.getuid() else "postgres"  # PostgreSQL refuses to run as root
        if self._user:
            os.chown(self.folder, getpwnam(self._user).pw_uid, -1)
        data = str(self.folder / "data")
        options = ["-D", data, "-U", "txrdma", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"]
        self._run(str(folder / "initdb"), *options)
        unsafe = ["fsync", "full_page_writes", "autovacuum"] + ["synchronous_commit"] * (not isDurable)
        self._words = [str(folder / "postgres"), "-D", data, "-k", str(self.folder)]
        self._words += ["-c", "listen_addresses="]
        self._words += [word for name in unsafe for word in ("-c", f"{name}=off")]
        atexit.register(self.stop)
        self.start()

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        self.process = subprocess.Popen(
            self._words,
            user=self._user,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._await()

    def kill(self) -> None:
        """End all processes of the server at once: what it did not write to its log is lost."""
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait()

    def _run(self, *words: str) -> None:
        subprocess.run(words, user=self._user, cwd=self.folder, check=True, capture_output=True)

    def _await(self) -> None:
        import psycopg

        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                psycopg.connect(host=str(self.folder), user="txrdma", dbname="postgres").close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > end or self.process.poll() is not None:
                    raise
                time.sleep(0.05)

    def newURL(self) -> str:
        """Create a database, and return its URL."""
        import psycopg

        name = f"history{next(_numbers)}"
        with psycopg.connect(
            host=str(self.folder), user="txrdma", dbname="postgres", autocommit=True
        ) as server:
            server.execute(f"CREATE DATABASE {name}")
        return f"postgresql+psycopg://txrdma@/{name}?host={self.folder}"

    def stop(self) -> None:
        """Stop the server immediately, and remove its files. Idempotent."""
        if self.process.poll() is None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@cache
def sharedServer() -> Postgres:
    """Return the server that the tests of this process share: each has a database of its own."""
    return Postgres()
