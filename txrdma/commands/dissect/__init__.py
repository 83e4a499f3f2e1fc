"""
A dissector of SMC in captures, for C{txrdma decode}.

Order of the modules: C{tcp} and C{words}, then C{conversation}, then C{capture}.
"""
