"""
Shared by the test_option_program modules of several groups.
"""

from __future__ import annotations

from txrdma.smc.carriers.option._assembler import Register

R0, R1, R2, R10 = Register.R0, Register.R1, Register.R2, Register.R10
