"""Model of a subnet with its nodes, ports and links; sweeps that discover it; and checks of the result."""
