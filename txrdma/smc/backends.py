"""
The backends of C{smc:} endpoints, by the names that endpoint strings give them (C{backend=}).
"""

from __future__ import annotations

from typing import Final

from txrdma.smc.interfaces import ISMCBackend
from txrdma.smc.userspace import UserspaceBackend

BACKENDS: Final = ("auto", "own", "kernel")
"""
The values of the key C{backend=} of endpoint strings.

C{auto} is our own stack: nobody gets the kernel's, which decides much else, without asking for it.
"""


def backendNamed(name: str) -> ISMCBackend:
    """
    The backend of that name, one of L{BACKENDS}.

    The kernel's is imported when it is wanted, which is rare.
    """
    if name == "kernel":
        from txrdma.smc.kernel.backend import KernelBackend

        return KernelBackend()
    return UserspaceBackend()
