"""
Defects of TCP transports: players that import one of these modules have a defective transport.

Each stands for a mistake that a provider of streams may make, and that conversations must detect.
"""
