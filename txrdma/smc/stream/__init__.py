"""A connection as protocols use it: its transport, its TCP connection, and its status."""
