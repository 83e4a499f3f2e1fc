"""Statistics and Prometheus metrics of connections, and the socket that C{txrdma connections} queries."""
