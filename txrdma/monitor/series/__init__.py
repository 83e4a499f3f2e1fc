"""Time series of counters: Prometheus' metric families, and the history in SQLite or PostgreSQL."""
