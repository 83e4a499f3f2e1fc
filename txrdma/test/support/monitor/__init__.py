"""Tests of the fabric monitor."""
