"""For tests of conversations between two processes; C{make conversations} plays all of them."""
