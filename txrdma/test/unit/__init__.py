"""Tests without processes, sockets or real time."""
