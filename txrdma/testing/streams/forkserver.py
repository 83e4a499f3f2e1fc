"""
The forkserver: a process that has imported all modules and forks players, which then start quickly.

It reads orders from its standard input, at whose end it kills all players and exits. It reports how a player
has ended to that player's runner. It imports no reactor: each player installs its own.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import selectors
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from importlib import import_module
from typing import Final, NoReturn

from txrdma.testing.streams import transcript
from txrdma.testing.streams.orders import Order
from txrdma.testing.streams.transcript import Entry, PROCESS

_IMPORTED: Final = (
    "twisted.internet.endpoints",
    "twisted.internet.unix",
    "twisted.plugins.twisted_core",
    "twisted.plugins.txrdma_devices",
    "twisted.plugins.txrdma_endpoints",
    "twisted.plugins.txrdma_streams",
    "twisted.protocols.tls",
    "twisted.scripts.twistd",
    "txrdma.smc.endpoints",
    "txrdma.soft.device",
    "txrdma.tap.proxy",
    "txrdma.testing.streams.player",
)
_OPTIONAL: Final = ("twisted.internet.ssl",)
_PR_SET_PDEATHSIG: Final = 1


def prepare() -> None:
    """Import the modules that players need, without plugins of others, which may install a reactor."""
    for name in _IMPORTED:
        import_module(name)
    for name in _OPTIONAL:
        try:
            import_module(name)
        except ImportError:
            pass
    if "twisted.internet.reactor" in sys.modules:
        raise ImportError("one of these modules has installed a reactor")


def dieWithParent() -> None:
    """Request that the kernel kills this process when its parent process ends (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Forkserver:
    """The forked players that have not ended."""

    def __init__(self) -> None:
        self._orders: dict[int, Order] = {}
        self._read = b""
        self._wake, wakeUp = socket.socketpair()
        for each in (self._wake, wakeUp):
            each.setblocking(False)
        self._wakeUp = wakeUp

    def serve(self) -> Order | None:
        """Fork for each order; return the order in a child, and None here at the end of the input."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        before = signal.set_wakeup_fd(self._wakeUp.fileno())
        with selectors.DefaultSelector() as selector:
            selector.register(0, selectors.EVENT_READ)
            selector.register(self._wake, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fd != 0:
                        self._wake.recv(4096)
                        self._reap()
                        continue
                    data = os.read(0, 65_536)
                    if not data:
                        self._endAll()
                        return None
                    *lines, self._read = (self._read + data).split(b"\n")
                    for line in lines:
                        order = Order.decode(line)
                        pid = os.fork()
                        if not pid:
                            signal.set_wakeup_fd(before)
                            return order
                        self._orders[pid] = order

    def leave(self) -> None:
        """Detach a child from the forkserver: a new session, and its own descriptors and signal handlers."""
        os.setsid()
        dieWithParent()
        for each in (self._wake, self._wakeUp):
            each.close()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def _reap(self) -> None:
        while self._orders:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            self._sendStatus(self._orders.pop(pid), status)

    def _sendStatus(self, order: Order, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        ended = f"exit {code}" if code >= 0 else signal.Signals(-code).name
        line = Entry(time.monotonic(), PROCESS, transcript.ENDED, f"{order.who} {ended}").encode()
        try:
            with socket.socket(socket.AF_UNIX) as runner:
                runner.connect(order.runner)
                runner.sendall(line)
        except OSError:
            pass  # the runner has finished this conversation

    def _endAll(self) -> None:
        for pid in self._orders:
            os.kill(pid, signal.SIGKILL)
        for pid in self._orders:
            os.waitpid(pid, 0)


def _runChild(order: Order) -> NoReturn:
    """
    Run a player, and exit like a process, but without the interpreter's finalization, which takes longer
    than most conversations.
    """
    from txrdma.testing.streams.player import play

    status = 1
    try:
        play(order)
        status = 0
    except BaseException:
        traceback.print_exc()
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread():
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main(folder: str) -> None:
    """
    Serve orders until the end of the standard input, or run a player in a forked child.

    @param folder: folder of the runner, which is removed at the end, even if the runner's process was killed.
    """
    os.setsid()
    prepare()
    gc.freeze()
    forkserver = Forkserver()
    order = forkserver.serve()
    if order is not None:
        forkserver.leave()
        _runChild(order)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
