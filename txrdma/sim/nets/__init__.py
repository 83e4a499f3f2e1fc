"""Descriptions of simulated subnets."""
