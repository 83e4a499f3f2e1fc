"""Shared code of commands: options, choice of devices, sessions with a fabric, tables."""
