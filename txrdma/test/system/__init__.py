"""Tests with several processes, third-party programs, packaging, and the kernel."""
