"""
Third-party programs as the two ends of a stream: each gets an endpoint string, and no other setting.
"""
