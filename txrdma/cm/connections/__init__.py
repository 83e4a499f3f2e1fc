"""Connections with queue pairs of their own: protocols for messages, and endpoints that make them."""
