"""A guest: QEMU with a kernel, the host's files and one command."""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, IO

from lab import initramfs, kernel, network
from lab.needs import find

CHECKOUT = Path(__file__).resolve().parent.parent
OUT = "/run/lab/out"
"""The guest's folder for results."""

OUT_OF_TIME, FAILED = 124, 125
"""Exit statuses other than the command's."""

PASSED_ON = re.compile(
    r"(PATH|HOME|LANG|LC_\w+|TERM|CI|VIRTUAL_ENV|PYTHON\w*|COVERAGE_\w+|HYPOTHESIS_\w+|TXRDMA_\w+)\Z"
)
"""Environment variables that the guest's command inherits."""

TURN_SECONDS = 180
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class GuestOptions:
    """
    Options of a guest.

    @ivar rxe: create the first of L{network.PAIRS}.
    @ivar smc: configure SMC-R for them.
    @ivar pairs: number of these pairs; two give a link group two links.
    @ivar captures: record packets of RoCE's UDP port in C{roce.pcap} in C{out}.
    @ivar mtu: MTU of the pairs and the TAP devices.
    @ivar taps: TAP devices of the host, with the guest's address on each: see L{network.joined}.
    @ivar out: the folder that is C{$LAB_OUT} inside.
    @ivar memory: MiB.
    @ivar isShell: give the terminal to the command.
    """

    command: Sequence[str]
    rxe: bool = False
    smc: bool = False
    pairs: int = 1
    captures: bool = False
    mtu: int = 1500
    taps: Mapping[str, str] = field(default_factory=dict)
    out: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path = field(default_factory=Path.cwd)
    memory: int = 1024
    cpus: int = 2
    kernel: str = "backports"
    isShell: bool = False


class Guest:
    """
    A running guest, which the end of its context ends.

    @ivar console: the output of its kernel and first process, after a failure.
    """

    def __init__(
        self, wanted: GuestOptions, out: BinaryIO | None = None, err: BinaryIO | None = None
    ) -> None:
        cache = kernel.cacheFolder()
        cache.mkdir(parents=True, exist_ok=True)
        program = find("qemu-system-x86_64")
        self.kernel = kernel.obtain(cache, wanted.kernel)
        archive = initramfs.build(self.kernel, cache)
        self._turn = _turn(cache)
        self._job = Path(tempfile.mkdtemp(prefix="txrdma-lab-"))
        try:
            self._start(wanted, program, archive, out or sys.stdout.buffer, err or sys.stderr.buffer)
        except BaseException:
            self._turn.close()
            shutil.rmtree(self._job, ignore_errors=True)
            raise

    def _start(self, wanted: GuestOptions, program: str, archive: Path, *sinks: BinaryIO) -> None:
        results = (wanted.out or self._job / "out").resolve()
        results.mkdir(parents=True, exist_ok=True)
        (self._job / "out").mkdir(exist_ok=True)
        (self._job / "start").write_text(startScript(wanted))
        ours, theirs = zip(*(socket.socketpair() for _ in sinks), strict=True)
        command = [program, *self._machine(wanted, archive), *self._files(results)]
        command += self._streams([each.fileno() for each in theirs])
        for number, name in enumerate(wanted.taps):
            command += ["-netdev", f"tap,id=net{number},ifname={name},script=no,downscript=no"]
            command += ["-device", f"virtio-net-pci,netdev=net{number},host_mtu={wanted.mtu}"]
        if wanted.isShell:
            command += ["-chardev", "stdio,id=shell,signal=off", "-device", "virtconsole,chardev=shell"]
        self._begun = time.time()
        with open(self._job / "qemu", "wb") as complaints:
            self._process = subprocess.Popen(
                command,
                stdin=None if wanted.isShell else subprocess.DEVNULL,
                stdout=None if wanted.isShell else complaints,
                stderr=complaints,
                pass_fds=[each.fileno() for each in theirs],
                preexec_fn=_endWithParent,
            )
        for each in theirs:
            each.close()
        self._readers = [
            threading.Thread(target=_copy, args=pair, daemon=True) for pair in zip(ours, sinks, strict=True)
        ]
        for reader in self._readers:
            reader.start()

    def _machine(self, wanted: GuestOptions, archive: Path) -> list[str]:
        return [
            *"-nodefaults -no-user-config -display none -no-reboot -cpu max".split(),
            *(*_accelerators(), "-smp", str(wanted.cpus), "-m", str(wanted.memory)),
            *("-kernel", str(self.kernel.image), "-initrd", str(archive)),
            *("-append", "console=ttyS0 quiet panic=-1 random.trust_cpu=on mitigations=off no_timer_check"),
            *("-serial", f"file:{self._job}/console"),
        ]

    def _files(self, results: Path) -> list[str]:
        shared = {"host": ("/", True), "modules": (self.kernel.modules, True)}
        shared |= {"job": (self._job, False), "out": (results, False)}
        words = []
        for tag, (path, isReadOnly) in shared.items():
            share = f"local,path={path},mount_tag={tag},security_model=none,multidevs=remap"
            words += ["-virtfs", share + (",readonly=on" if isReadOnly else "")]
        return words

    def _streams(self, descriptors: Sequence[int]) -> list[str]:
        words = ["-device", "virtio-serial-pci"]
        for name, descriptor in zip(("out", "err"), descriptors, strict=True):
            words += ["-chardev", f"socket,id={name},fd={descriptor}"]
            words += ["-device", f"virtserialport,chardev={name},name={name}"]
        return words

    @property
    def console(self) -> str:
        parts = [self._job / "qemu", self._job / "console"]
        return "".join(part.read_text(errors="replace") for part in parts if part.exists())

    @property
    def bootSeconds(self) -> float | None:
        """Seconds until the command began, or None."""
        ready = self._job / "ready"
        return ready.stat().st_mtime - self._begun if ready.exists() else None

    def wait(self, timeout: float | None = None) -> int:
        """Return the command's exit status, L{OUT_OF_TIME}, or L{FAILED} if the guest ended without one."""
        isLate = False
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            isLate = True
        self._end()
        try:
            return int((self._job / "status").read_text())
        except (OSError, ValueError):
            return OUT_OF_TIME if isLate else FAILED

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._turn.close()
        for reader in self._readers:
            reader.join()

    def __enter__(self) -> Guest:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        shutil.rmtree(self._job, ignore_errors=True)


def _accelerators() -> list[str]:
    """
    Return KVM if the processor supports it and QEMU may use it, otherwise emulation.

    C{/dev/kvm} alone is not sufficient: on some hosts it opens, but supports only special kernels. Every
    guest boots, because QEMU cannot make a snapshot while 9p is mounted.
    """
    flags = Path("/proc/cpuinfo").read_text().split()
    kvm = ["-accel", "kvm"] if "vmx" in flags or "svm" in flags else []
    return [*kvm, "-accel", "tcg,thread=multi"]


def startScript(wanted: GuestOptions) -> str:
    """Return the script of the guest's shell, once the host's files are mounted: network, then command."""
    environment = {name: value for name, value in os.environ.items() if PASSED_ON.match(name)}
    environment |= wanted.environment
    path = environment.get("PATH", os.defpath)
    environment |= {"PATH": f"{path}:/usr/sbin:/sbin", "LAB": "1", "LAB_OUT": OUT}
    lines = [
        "exec >/dev/console 2>&1 </dev/null",
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "for port in /sys/class/virtio-ports/*; do",
        "read -r name <$port/name; eval $name=/dev/${port##*/}",
        "done",
        "ip link set lo up",
    ]
    if wanted.rxe or wanted.smc:
        lines += network.pairs(wanted.mtu, wanted.pairs)
    for index, address in enumerate(wanted.taps.values()):
        lines += network.joined(index, address)
    if wanted.smc:
        python = shlex.quote(sys.executable)
        sides = zip(*network.PAIRS[: wanted.pairs], strict=True)
        groups = [",".join(f"{end.interface},{end.device}" for end in side) for side in sides]
        lines += [f"(cd {shlex.quote(str(CHECKOUT))}; {python} -m lab.smc {' '.join(groups)})"]
    if wanted.captures:
        lines += [f"tcpdump -Z root -U -Q in -i any -w {OUT}/roce.pcap udp port {network.ROCE_PORT} &"]
        lines += ["sleep 2"]
    lines += [": >/run/lab/ready"]
    lines += ["exec </dev/hvc0 >/dev/hvc0 2>&1" if wanted.isShell else "exec >$out 2>$err"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(environment.items())]
    lines += [f"cd {shlex.quote(str(wanted.folder))} || exit {FAILED}"]
    session = "setsid -cw" if wanted.isShell else "setsid -w"
    lines += [f"exec {session} {shlex.join(wanted.command)}", ""]
    return "\n".join(lines)


def _turn(cache: Path) -> IO[bytes]:
    """
    Wait until the machine can run another guest: slow guests miss their timeouts.

    After some minutes this one starts anyway. The returned file is locked while it is open.
    """
    places = max((os.cpu_count() or 1) // 2, 1)
    end = time.monotonic() + TURN_SECONDS
    isReported = False
    while True:
        for number in range(places):
            file = open(cache / f"place-{number}", "wb")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if number == places - 1 and time.monotonic() > end:
                    return file
                file.close()
            else:
                return file
        if not isReported:
            print("lab: waiting for another guest to end", file=sys.stderr, flush=True)
            isReported = True
        time.sleep(0.2)


def _copy(source: socket.socket, sink: BinaryIO) -> None:
    with source:
        while data := source.recv(1 << 16):
            try:
                sink.write(data)
                sink.flush()
            except OSError:
                pass  # without a reader the guest would block


def _endWithParent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
