"""Connections: their transports, TCP connections, and status."""
