"""Simulations of SMC-R: hosts, random protocols, faults."""
