"""Streams of bytes over RDMA connections, by the protocol of librdmacm's rsockets."""
