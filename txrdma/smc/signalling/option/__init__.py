"""
The TCP option of SMC-R, added and read by an eBPF program.

 - C{reasons}: errors of bpf(2) with the reason and what to do, such as missing capabilities.
 - C{bpf}: the system call bpf(2).
 - C{filesystems}: cgroups, BPF file systems, and mounts.
 - C{program}: the instructions of the program, its flags and its counters.
 - C{carrier}: marks sockets of this process, and reads whether the peer has sent the option; the path of an
   installed program.
 - C{installing}: C{txrdma smc-option}: installs, removes and inspects the program for other processes.
 - C{shared}: the one carrier of a reactor, opened on first use; the environment variable TXRDMA_SMC_OPTION.
"""
