"""
Defects of TCP transports: a player that imports one of these modules has a defective transport.

Each represents a defect that a provider of streams may have, and that conversations must detect.
"""
