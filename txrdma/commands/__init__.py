"""The commands of C{txrdma}, one module each; C{common} and C{formats} are shared."""
