"""Services for C{twistd}: a proxy between TCP and RDMA, and the fabric monitor."""
