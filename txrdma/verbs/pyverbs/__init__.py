"""
Kernel devices through pyverbs, which only this package imports, and only on demand.

C{device} opens a device and reports its events. C{events} reads these, and detects removed devices even if
the driver reports nothing.
"""
