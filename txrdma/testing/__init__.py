"""Contracts, simulations and test doubles for users' and our own tests."""
