"""Events of a fabric: the journal of changes, state that outlasts the process, and notifications."""
