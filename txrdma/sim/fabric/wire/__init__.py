"""The transport of management datagrams in a simulated subnet."""
