"""
Time series of counters: Prometheus' metric families, and the history in SQLite or PostgreSQL.

 - C{exposition}: counters and states in Prometheus' text format.
 - C{level}: levels of detail, and how long each is stored (C{DEFAULT_LEVELS}).
 - C{rows}: rows of a history, from readings; which counters are stored (C{STORED_COUNTERS}).
 - C{database}: SQLite and PostgreSQL; the lease of the only writer.
 - C{eventtable}: the table of events, and which old ones are deleted.
 - C{migrations}: histories of older versions.
 - C{historystore}: the history in a database: tables by period, coarser levels, limits of ports
   (C{MOST_PORTS}) and size.
 - C{history}: writes it in a thread, in batches; how much may wait (C{MOST_ROWS}, C{MOST_EVENTS}).
 - C{remotesettings}: settings of a time series engine.
 - C{remotewriter}: sends the history to an engine, by L{txrdma.kit.remotesender}; how many rows may wait.
 - C{promqlreader}: reads it from there, with limits of queries.
"""
