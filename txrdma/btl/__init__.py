"""
The byte transfer layer: reliable messages to many peers over one queue pair of unreliable datagrams.
"""
