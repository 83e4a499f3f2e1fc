"""
The contract of verbs devices, in parts.
"""
