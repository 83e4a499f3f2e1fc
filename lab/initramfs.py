"""The guest's first file system: busybox, some kernel modules, and C{guest/init}."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
from pathlib import Path

from lab.kernel import Kernel
from lab.needs import find, output, Unavailable

INIT = Path(__file__).with_name("guest") / "init"

MODULES = (
    "virtio_pci virtio_console 9pnet_virtio 9p overlay virtio_net "
    "veth tun bridge sch_netem cls_u32 af_packet "
    "ib_core ib_uverbs ib_umad ib_cm rdma_cm rdma_ucm rdma_rxe smc smc_diag"
).split()
"""Modules loaded first; C{modprobe} finds the others, since all modules of the kernel are available."""

MODPROBE = b'#!/bin/busybox sh\nexec chroot /root /sbin/modprobe "$@"\n'
"""The kernel requests modules in its first root directory."""


def build(kernel: Kernel, cache: Path) -> Path:
    """Return the archive for this kernel; create it if it is missing or outdated."""
    files = _moduleFiles(kernel)
    busybox = Path(find("busybox"))
    ingredients = (INIT.read_bytes(), MODPROBE, busybox.read_bytes(), "\n".join(map(str, files)).encode())
    mark = hashlib.sha256(b"\0".join(ingredients)).hexdigest()[:16]
    target = cache / f"initramfs-{mark}.gz"
    if target.exists():
        return target
    archive = _Archive()
    for folder in ("bin", "sbin", "dev", "proc", "sys", "run", "modules", "host", "root"):
        archive.folder(folder)
    archive.console()
    archive.program("bin/busybox", busybox.read_bytes())
    archive.program("init", INIT.read_bytes())
    archive.program("sbin/modprobe", MODPROBE)
    for path in files:
        archive.file(f"modules/{path.stem if path.suffix == '.xz' else path.name}", _plain(path))
    order = "".join(f"{path.name.removesuffix('.xz')}\n" for path in files)
    archive.file("modules/order", order.encode())
    scratch = target.with_suffix(f".{os.getpid()}")
    scratch.write_bytes(gzip.compress(archive.finished(), 1))
    scratch.replace(target)
    return target


def _moduleFiles(kernel: Kernel) -> list[Path]:
    """Return the files of L{MODULES}, each after its dependencies; built-in modules have none."""
    files: dict[Path, None] = {}
    for module in MODULES:
        words = ("-d", kernel.home, "-S", kernel.version, "--show-depends", module)
        try:
            listed = output(find("modprobe"), *words)
        except Unavailable:
            continue  # not in this kernel
        for line in listed.splitlines():
            if line.startswith("insmod "):
                files[Path(line.split()[1])] = None
    return list(files)


def _plain(path: Path) -> bytes:
    data = path.read_bytes()
    return lzma.decompress(data) if path.suffix == ".xz" else data


class _Archive:
    """A cpio archive in the portable format with ASCII headers, as the kernel unpacks it."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._count = 0

    def folder(self, name: str) -> None:
        self._add(name, 0o040755)

    def file(self, name: str, data: bytes) -> None:
        self._add(name, 0o100644, data)

    def program(self, name: str, data: bytes) -> None:
        self._add(name, 0o100755, data)

    def console(self) -> None:
        self._add("dev/console", 0o020600, device=(5, 1))

    def finished(self) -> bytes:
        self._add("TRAILER!!!", 0)
        return bytes(self._data)

    def _add(self, name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)) -> None:
        self._count += 1
        called = name.encode() + b"\0"
        # Inode, mode, owner, group, links, time, size, device, special device, length of the name, sum.
        numbers = (self._count, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(called), 0)
        self._data += b"070701" + b"".join(b"%08X" % number for number in numbers)
        for part in (called, data):
            self._data += part
            self._data += bytes(-len(self._data) % 4)
