"""Byte streams over RDMA connections, with the protocol of librdmacm's rsockets."""
