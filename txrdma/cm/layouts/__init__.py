"""
Layouts of the messages and paths of the communication manager, and of private data of the RDMA IP CM service.
"""
