"""
Third-party programs as the two ends of a stream, configured by an endpoint string only.
"""
