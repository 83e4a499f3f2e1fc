"""
Notifications of findings, and the state that survives the process; L{txrdma.monitor.diagnosis.journal} has
the events.

 - C{restoring}: what a new process restores from the history.
 - C{alerts}: which findings are sent and when (C{AlertRules}): delays, silences, findings sent before.
 - C{channels}: webhooks, mail and lines of JSON, with their time-outs (C{POST_SECONDS}, C{MAIL_SECONDS}).
 - C{syslog}: messages to syslog.
 - C{notificationqueue}: alerts that wait for a channel: their limit (C{MOST_ALERTS}), retries
   (C{RETRY_SECONDS}), and storage.
 - C{notifier}: sends alerts to all channels.
"""
