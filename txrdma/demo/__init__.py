"""
Demonstration that downloads a folder of files over SMC-R and over TCP. Run it with C{python -m txrdma.demo}.
"""
