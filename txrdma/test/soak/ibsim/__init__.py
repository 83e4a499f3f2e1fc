"""
Comparisons with ibsim and OpenSM on large fabrics.
"""
