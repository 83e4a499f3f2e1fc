"""Agents of simulated nodes: subnet management, performance management and others."""
