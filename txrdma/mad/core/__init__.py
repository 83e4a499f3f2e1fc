"""
What becomes of calls and of RMPP transfers is decided here, without a clock or a socket.

L{txrdma.mad.core.calls} is what agents drive; the other modules are its parts.
"""
