"""
Diagnosis of a fabric: error thresholds, lost nodes and links, subnet managers, and the log of findings.
"""
