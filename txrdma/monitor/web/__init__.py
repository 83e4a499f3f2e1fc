"""The monitor over HTTP: pages for people, REST and events for programs, metrics for Prometheus."""
