"""
Names of the registers that programs of the TCP option are tested with.
"""

from __future__ import annotations

from txrdma.smc.signalling.option._assembler import Register

R0, R1, R2, R10 = Register.R0, Register.R1, Register.R2, Register.R10
