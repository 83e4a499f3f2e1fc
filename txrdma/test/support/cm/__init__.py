"""Suites for the communication manager."""
