"""Connections by the kernel's communication manager, through librdmacm."""
