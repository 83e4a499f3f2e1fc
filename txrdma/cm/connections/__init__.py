"""Connections including their queue pairs: protocols for messages, and endpoints that make them."""
