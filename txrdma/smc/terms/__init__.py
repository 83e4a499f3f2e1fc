"""Offers and agreements of two ends, and the options of an endpoint; no I/O."""
