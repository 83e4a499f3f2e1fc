"""
Simulations of the byte transfer layer: modules on a network that loses, duplicates, delays and reorders
packets as a seed determines.
"""
