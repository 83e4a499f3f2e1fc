"""What two ends offer and agree on, and the options of an endpoint; no I/O."""
