"""
Events of a fabric: the journal of changes, state that survives the process, and notifications.

 - C{restoring}: what a new process restores from the history.
 - C{alerts}: which findings are sent and when: delays, silences, findings sent before.
 - C{channels}: webhooks, mail and lines of JSON.
 - C{syslog}: messages to syslog.
 - C{notificationqueue}: alerts that wait for a channel: their limit, retries, and storage.
 - C{notifier}: sends alerts to all channels.
"""
