"""Tests of management datagrams."""
