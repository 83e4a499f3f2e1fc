"""A configuration of the monitor, with settings in most sections."""

from __future__ import annotations

WHOLE = """
port = "sim:fattree:4"

[web]
listen = ""

[poll]
interval = 1
notices = false

[metrics]
counters = ["PortXmitData", "symbolErrorCounter"]

[findings]
clear = 5.0
ignored = ["vl15-dropped"]

[findings.severity]
width = "critical"

[alerts]
delay = 5
group = 1
severity = "info"
log = "findings.log"

[alerts.mail]
host = "mail.example.org"
from = "fabric@example.org"
to = ["ops@example.org"]

[alerts.webhooks.ours]
url = "http://alerts.example.org:9093/api/v2/alerts"

[alerts.webhooks.chat]
url = "https://chat.example.org/hook"
format = "webhook"

[alerts.silences.works]
kind = "node-gone"
where = "rack 7*"
until = 2026-12-24T18:00:00Z

[limits.SymbolErrorCounter]
most = 7

[limits.PortXmitWait]
most = 1000000
seconds = 60
"""
