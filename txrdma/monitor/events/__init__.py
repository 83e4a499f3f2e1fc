"""Events of a fabric: the journal of changes, state that survives the process, and notifications."""
