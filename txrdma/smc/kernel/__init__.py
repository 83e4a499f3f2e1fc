"""The kernel's AF_SMC sockets as a backend of endpoints, and their state by sock_diag(7)."""
