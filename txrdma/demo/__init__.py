"""
A demonstration: a folder of files over SMC-R, then over TCP. Run it with C{python -m txrdma.demo}.
"""
