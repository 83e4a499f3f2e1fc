"""Reading of a fabric: sweeps, counters of ports, forwarding tables; on a reactor."""
