"""Devices of the kernel by pyverbs, which only this package imports, and only on demand."""
