"""
Downloads of a folder of files over SMC-R and over TCP: C{python -m txrdma.demo}.

 - C{files}: the files that are served.
 - C{report}: figures and the table.
 - C{download}: the process that downloads.
 - C{processes}: starts server and downloader.
 - C{__main__}: the command line, and the contest.
"""
