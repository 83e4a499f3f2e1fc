"""Debian's kernel for the guest, and other packages of suites, downloaded by apt into the user's cache."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from lab.needs import find, output, Unavailable

FRESH_SECONDS = 24 * 3600
"""Seconds for which the newest kernel of a suite is cached."""


@dataclass(frozen=True)
class Kernel:
    """
    An unpacked kernel.

    @ivar version: as C{uname -r} prints it.
    @ivar home: a folder with C{vmlinuz} and C{lib/modules}.
    """

    version: str
    home: Path

    @property
    def image(self) -> Path:
        return self.home / "vmlinuz"

    @property
    def modules(self) -> Path:
        return self.home / "lib" / "modules"


def cacheFolder() -> Path:
    """Return the folder of cached kernels."""
    chosen = os.environ.get("LAB_CACHE")
    if chosen:
        return Path(chosen).resolve()
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home, "txrdma", "lab").resolve()


def obtain(cache: Path, wanted: str = "backports") -> Kernel:
    """
    Return the newest kernel of C{backports} or C{stable}, or of a package name.

    Without backports, the suite's own kernel is used, with a message on standard error.
    """
    try:
        return _unpacked(cache, wanted)
    except Unavailable as error:
        if wanted != "backports":
            raise
        print(f"lab: no kernel of backports ({error}); taking the suite's own", file=sys.stderr)
        return _unpacked(cache, "stable")


def unpackedPackage(cache: Path, package: str) -> Path:
    """
    Return a folder with the files of a package, without installing it: installed servers would start.

    @raise Unavailable: the package cannot be downloaded.
    """
    home = cache / package
    if not home.exists():
        apt = _Apt(cache, "stable")
        print(f"lab: fetching {package}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(dir=cache) as name:
            scratch = Path(name)
            output("dpkg-deb", "-x", apt.download(package, scratch), scratch / "tree")
            _keep(scratch / "tree", home)
    return home


def _keep(made: Path, home: Path) -> None:
    """Move a folder into its final path atomically, because another run may do the same."""
    try:
        made.rename(home)
    except OSError:
        if not home.exists():
            raise


def _unpacked(cache: Path, wanted: str) -> Kernel:
    note = cache / f"newest-{wanted}"
    here = note.read_text() if note.exists() else None
    if wanted not in ("backports", "stable"):
        package, apt = wanted, None
    elif here is not None and time.time() - note.stat().st_mtime < FRESH_SECONDS:
        package, apt = here, None
    else:
        try:
            apt = _Apt(cache, wanted)
            package = apt.newestKernel()
        except Unavailable as error:
            if here is None:
                raise
            print(f"lab: {error}; going on with {here}", file=sys.stderr)
            package, apt = here, None
    home = cache / package
    if not (home / "vmlinuz").exists():
        _unpack(apt or _Apt(cache, wanted if wanted == "stable" else "backports"), package, home)
    if apt is not None:
        note.write_text(package)
    [modules] = (home / "lib" / "modules").iterdir()
    return Kernel(modules.name, home)


class _Apt:
    """
    An apt with its own state in the cache, and the machine's sources plus one suite.

    No setting of the machine changes, and no privileges are needed.
    """

    def __init__(self, cache: Path, which: str) -> None:
        release = _release()
        self.suite = f"{release}-backports" if which == "backports" else release
        state = cache / "apt" / self.suite
        for folder in ("lists/partial", "cache/archives/partial"):
            (state / folder).mkdir(parents=True, exist_ok=True)
        (state / "sources.list").write_text("".join(_sources(release, self.suite)))
        self._options = [
            f"-oDir::Etc::SourceList={state}/sources.list",
            "-oDir::Etc::SourceParts=/dev/null",
            f"-oDir::State::Lists={state}/lists",
            f"-oDir::Cache={state}/cache",
            "-oAPT::Sandbox::User=",
        ]
        output("apt-get", *self._options, "-qq", "update")

    def newestKernel(self) -> str:
        """Return the package to which C{linux-image-amd64} refers today."""
        for line in output("apt-cache", *self._options, "depends", "linux-image-amd64").splitlines():
            match = re.match(r"\s*Depends: (linux-image-\S+)$", line)
            if match:
                return match[1]
        raise Unavailable(f"{self.suite} has no linux-image-amd64")

    def download(self, package: str, folder: Path) -> Path:
        output("apt-get", *self._options, "-qq", "download", package, cwd=folder)
        [archive] = folder.glob("*.deb")
        return archive


def _release() -> str:
    osRelease = Path("/etc/os-release").read_text() if Path("/etc/os-release").exists() else ""
    match = re.search(r"^VERSION_CODENAME=\"?(\w+)", osRelease, re.MULTILINE)
    if match is None:
        raise Unavailable("this is not a release of Debian's: no kernel to fetch")
    return match[1]


def _sources(release: str, suite: str) -> list[str]:
    """Return the lines of C{sources.list} for a suite, from the mirror of the running release."""
    listed = output("apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME)", "Created-By: Packages")
    found = {line.split(" ")[0] for line in listed.splitlines() if line.endswith(f" {release}")}
    if not found:
        raise Unavailable(f"apt knows no source of {release}; apt-get update may help")
    return sorted(f"deb {uri} {suite} main\n" for uri in found)


def _unpack(apt: _Apt, package: str, home: Path) -> None:
    print(f"lab: fetching {package}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=home.parent) as name:
        scratch = Path(name)
        output("dpkg-deb", "-x", apt.download(package, scratch), scratch / "tree")
        [image] = (scratch / "tree" / "boot").glob("vmlinuz-*")
        version = image.name.removeprefix("vmlinuz-")
        [modules] = [
            *scratch.glob(f"tree/lib/modules/{version}"),
            *scratch.glob(f"tree/usr/lib/modules/{version}"),
        ]
        made = scratch / "made"
        (made / "lib" / "modules").mkdir(parents=True)
        shutil.move(modules, made / "lib" / "modules" / version)
        shutil.move(image, made / "vmlinuz")
        output(find("depmod"), "-b", made, version)
        _keep(made, home)
