"""A simulated subnet manager and its subnet administration (SA)."""
