"""Layouts of the messages of SMC-R: CLC, LLC and CDC."""
