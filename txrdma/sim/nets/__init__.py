"""
Descriptions of simulated subnets.
"""
