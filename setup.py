"""
A shim for tools that ask for it; everything is said in C{pyproject.toml}, but for the compiled cores and the
addresses of the project.

With C{TXRDMA_COMPILE=1} in the environment mypyc compiles the modules that every message passes through. They
are the same files, and without it they run as they stand. C{tools/buildbackend.py} adds mypyc to what a build
needs. C{TXRDMA_OPTIMIZE} is the C compiler's level, 3 by default.
"""

import os
import sys
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
sys.path.append(str(HERE / "tools"))

from projectpage import readme, urls  # noqa: E402

COMPILED = [
    "txrdma/btl/core/assembly.py",
    "txrdma/btl/core/congestion.py",
    "txrdma/btl/core/earlypackets.py",
    "txrdma/btl/core/flow.py",
    "txrdma/btl/core/receivebuffer.py",
    "txrdma/btl/core/marks.py",
    "txrdma/btl/core/module.py",
    "txrdma/btl/core/ordering.py",
    "txrdma/btl/core/path.py",
    "txrdma/btl/core/peer.py",
    "txrdma/btl/core/pendingacks.py",
    "txrdma/btl/core/receiving.py",
    "txrdma/btl/core/regions.py",
    "txrdma/btl/core/roundtrip.py",
    "txrdma/btl/core/shortcuts.py",
    "txrdma/btl/core/timetable.py",
    "txrdma/btl/core/window.py",
    "txrdma/btl/groups/_sharedalgorithms.py",
    "txrdma/btl/groups/_slots.py",
    "txrdma/btl/batches.py",
    "txrdma/btl/channels.py",
    "txrdma/btl/inbox.py",
    "txrdma/btl/module.py",
    "txrdma/btl/outbox.py",
    "txrdma/btl/requests.py",
    "txrdma/btl/transport.py",
    "txrdma/btl/wire.py",
    "txrdma/cm/rsocket/_receiving.py",
    "txrdma/cm/rsocket/_requests.py",
    "txrdma/cm/rsocket/_sending.py",
    "txrdma/messages/transport.py",
    "txrdma/smc/flow/flow.py",
    "txrdma/smc/flow/ring.py",
    "txrdma/smc/group/link.py",
    "txrdma/smc/flow/sendqueue.py",
    "txrdma/smc/group/sendscheduler.py",
    "txrdma/soft/core/directdatagrams.py",
    "txrdma/soft/core/pieces.py",
    "txrdma/soft/rc/_datagram.py",
    "txrdma/soft/rc/localpeers.py",
    "txrdma/soft/shared/_wakeups.py",
    "txrdma/soft/shared/_rings.py",
    "txrdma/soft/shared/datagramlane.py",
    "txrdma/soft/shared/_incoming.py",
    "txrdma/soft/shared/_lane.py",
    "txrdma/soft/shared/_outgoing.py",
    "txrdma/soft/shared/_remote.py",
    "txrdma/unix/fences.py",
    "txrdma/verbs/_busypoll.py",
    "txrdma/verbs/_sources.py",
]

extensions = []
isCompiled = os.environ.get("TXRDMA_COMPILE", "") not in ("", "0")
if isCompiled and not {"egg_info", "dist_info"} & {*sys.argv}:  # before mypyc is there
    from mypyc.build import mypycify

    extensions = mypycify(
        ["--config-file", "pyproject.toml", *COMPILED],
        opt_level=os.environ.get("TXRDMA_OPTIMIZE", "3"),
        group_name="txrdma_cores",
    )
    for extension in extensions:  # the same bytes in any folder: no paths, no symbols for debuggers
        extension.extra_compile_args = [
            *extension.extra_compile_args,
            "-g0",
            f"-ffile-prefix-map={Path.cwd()}=.",
        ]
        extension.extra_link_args = [*extension.extra_link_args, "-Wl,-s"]

repository = os.environ.get("TXRDMA_REPOSITORY", "").rstrip("/")
page = (HERE / "README.md").read_text()
setup(
    ext_modules=extensions,
    long_description=readme(page, repository) if repository else page,
    long_description_content_type="text/markdown",
    project_urls=urls(repository) if repository else {},
)
