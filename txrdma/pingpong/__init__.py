"""Measurements of latency and bandwidth between any two devices."""
