"""The state of a simulated subnet: nodes, ports and links."""
