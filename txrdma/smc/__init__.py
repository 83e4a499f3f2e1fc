"""
SMC-R (RFC 7609): streams with TCP's guarantees over RDMA.

Subpackages, lowest first; each imports only those to its left (C{txrdma.test.unit.test_layers} checks it)::

    common, wire < terms < flow < group < stream < handshake < kernel
                   terms < signalling < handshake
                                        stream < status < kernel

C{userspace} and C{kernel.transports} are the two backends; C{endpoints} and C{strings} are the public API.
"""
