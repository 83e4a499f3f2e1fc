"""The TCP option of SMC-R, added and read by an eBPF program."""
