"""Kernel devices through pyverbs, which only this package imports, and only on demand."""
