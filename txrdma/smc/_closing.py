"""How a connection ends (RFC 7609, 4.8)."""
