"""Contracts, simulations and test doubles for tests of txrdma and of programs that use it."""
