"""
A Linux kernel in a virtual machine: RDMA devices for machines that have none.

C{python -m lab --rxe -- COMMAND} runs one command in it; C{python -m lab.suites} the tests of
C{txrdma.test.system.kernel}. Only Python's standard library is required.
"""
