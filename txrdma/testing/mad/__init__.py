"""The contract of management ports."""
