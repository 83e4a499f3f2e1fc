"""Byte streams over connections of the byte transfer layer."""
