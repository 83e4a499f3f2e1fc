"""A shim for tools that ask for it; everything is said in C{pyproject.toml}."""

from setuptools import setup

setup()
