"""Diagnosis of a fabric: error thresholds, lost nodes and links, and the log of findings."""
