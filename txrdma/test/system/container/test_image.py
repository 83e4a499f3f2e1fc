"""
A monitor in the image of C{examples/fabric-monitor/Containerfile}, queried from outside.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Final

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support.processes import CHECKOUT
from txrdma.test.system.container import OUTSIDE

STORAGE: Final = Path(os.environ.get("CONTAINER_FOLDER", "build/container")).absolute()
BASE: Final = "localhost/txrdma-base"
IMAGE: Final = "localhost/txrdma-monitor"
BUILD_SECONDS: Final = 600.0
PATIENCE_SECONDS: Final = 60.0

CONFIG: Final = """
port = "sim:fattree:4"
web.listen = "unix:/state/page"
history.file = "/state/history.db"
poll.interval = 0.2
poll.notices = false
"""


def buildah(*words: str) -> list[str]:
    """Return a command of buildah with a private storage."""
    return ["buildah", "--root", str(STORAGE / "storage"), "--runroot", str(STORAGE / "run"), *words]


def printed(*words: str) -> str:
    """Return the output of a command; the error of a failure contains its complaints."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=BUILD_SECONDS)
    if done.returncode:
        raise AssertionError(f"{words}: {done.stderr[-3000:]}")
    return done.stdout


class _UnixConnection(http.client.HTTPConnection):
    """A connection to a server at a path."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=PATIENCE_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


class ImageTests(SynchronousTestCase):
    """One image for all tests, and a container for each."""

    skip = OUTSIDE
    isBuilt = False

    def setUp(self) -> None:
        if not ImageTests.isBuilt:
            self.build()
            ImageTests.isBuilt = True
        self.container = printed(*buildah("from", "--pull-never", IMAGE)).strip()
        self.addCleanup(printed, *buildah("rm", self.container))
        self.folder = Path(tempfile.mkdtemp(prefix="txrdma-container-"))  # short, as paths of sockets must be
        self.addCleanup(shutil.rmtree, self.folder)

    def build(self) -> None:
        """Build the image from this project's files and a local base."""
        tree = Path(self.mktemp()).absolute()
        files = printed("git", "-C", str(CHECKOUT), "ls-files", "-z").split("\0")
        for name in filter(None, files):
            if (CHECKOUT / name).exists():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(CHECKOUT / name, tree / name)
        mounts = [
            word
            for path in ("/etc/ssl/certs", "/etc/pip.conf")  # how this host reaches PyPI
            if os.path.exists(path)
            for word in ("-v", f"{path}:{path}:ro")
        ]
        options = ["--isolation=chroot", "--pull-never", f"--build-arg=BASE={BASE}", f"--tag={IMAGE}"]
        file = "examples/fabric-monitor/Containerfile"
        printed(*buildah("bud", *options, *mounts, "-f", str(tree / file), str(tree)))

    def words(self) -> list[str]:
        """Return the default command of the image."""
        config = json.loads(printed(*buildah("inspect", "--type=image", IMAGE)))["OCIv1"]["config"]
        return [*config["Entrypoint"], *config["Cmd"]]

    def run_(self, *words: str, mounts: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        """Run a command in the container until the test has ended."""
        options = ["--isolation=chroot", "--network=host", *(f"--volume={mount}" for mount in mounts)]
        program = subprocess.Popen(
            buildah("run", *options, self.container, "--", *words),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

        def end() -> None:
            program.terminate()
            program.communicate()

        self.addCleanup(end)
        return program

    def test_monitor(self) -> None:
        """The image's default command watches the configured fabric, serves it, and stores a history."""
        (self.folder / "config").mkdir()
        (self.folder / "state").mkdir()
        (self.folder / "config" / "fabric-monitor.toml").write_text(CONFIG)
        mounts = (  # buildah mounts another folder where the image has a volume
            f"{self.folder}/config:/etc/fabric-monitor:ro",
            f"{self.folder}/state:/state",
        )
        self.run_(*self.words(), mounts=mounts)
        text = ""
        end, pause = time.monotonic() + PATIENCE_SECONDS, threading.Event()
        while "infiniband_port_data_transmitted_bytes_total{" not in text:
            self.assertLess(time.monotonic(), end, text[-1000:])
            pause.wait(0.2)
            text = self.asked(str(self.folder / "state" / "page"), "/metrics")
        self.assertEqual(text.count("\ninfiniband_node_info{"), 5)
        self.assertTrue((self.folder / "state" / "history.db").exists())

    def asked(self, path: str, page: str) -> str:
        connection = _UnixConnection(path)
        try:
            connection.request("GET", page)
            return connection.getresponse().read().decode()
        except (FileNotFoundError, ConnectionRefusedError):
            return ""
        finally:
            connection.close()

    def test_demo(self) -> None:
        """The demonstration that is described at the top of the file is available."""
        program = self.run_("txrdma", "demo-fabric", "--hosts=16", "--listen=tcp:0:interface=127.0.0.1")
        assert program.stdout is not None
        line = program.stdout.readline()
        self.assertIn("The page is at http://", line)
        with urllib.request.urlopen(line.split()[4], timeout=PATIENCE_SECONDS) as answer:
            self.assertIn("Fabric monitor", answer.read().decode())

    def test_options(self) -> None:
        """TLS and PostgreSQL can be configured as the documentation describes."""
        program = self.run_("python3", "-c", "import OpenSSL, psycopg, txrdma; print('all')")
        output, _nothing = program.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual((output, program.returncode), ("all\n", 0))
