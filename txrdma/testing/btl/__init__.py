"""
Simulations of the byte transfer layer: modules on a network that loses, doubles, delays and reorders, by a
seed.
"""
