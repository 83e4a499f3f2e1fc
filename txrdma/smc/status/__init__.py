"""
Statistics and Prometheus metrics of connections, and the socket that C{txrdma connections} queries.

 - C{statistics}: counters and gauges of the process, with sizes by class.
 - C{families}: the same as metric families, for any metrics library.
 - C{report}: connections, link groups and statistics as values for JSON.
 - C{control}: the status socket of a process.
"""
