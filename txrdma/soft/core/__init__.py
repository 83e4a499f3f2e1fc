"""
Memory regions, completion queues and queue pairs of the software device, and the interface of its routes.
"""
