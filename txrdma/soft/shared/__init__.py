"""
The route of the software device between processes of one host: lanes in shared memory, and their rendezvous.
"""
