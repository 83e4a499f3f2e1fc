"""
Protocol cores of calls and of RMPP transfers, without a clock or a socket.

Agents drive L{txrdma.mad.core.calls}; the other modules are its parts.
"""
