"""Downloads of a folder of files over SMC-R and over TCP: C{python -m txrdma.demo}."""
