"""
Services for C{twistd}: a proxy between TCP and RDMA, and the fabric monitor.

 - C{listening}: services that listen, and fail with one line.
 - C{systemd}: notifies systemd: ready, alive, status.
 - C{proxy}: C{twistd smc-proxy}; how long it waits for open connections when it stops.
 - C{steadyclock}: the clock of the monitor, which runs slowly after the system time was set back.
 - C{duty}: what only the active monitor does: history, notifications, files, samples for a time series
   engine.
 - C{monitor}: the monitor of one fabric: its parts, active and standby (L{txrdma.kit.lease} has the
   duration of the lease), reloads of the configuration.
 - C{fabrics}: monitors of several fabrics, with one web site.
 - C{replay}: a monitor of recorded fabrics (C{--replay}).
 - C{fabricmonitor}: the command line of C{twistd fabric-monitor}.
 - C{fabriccollector}: C{twistd fabric-collector}, which reads counters for a monitor.
"""
