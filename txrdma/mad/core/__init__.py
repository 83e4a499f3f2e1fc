"""
Protocol cores of calls and of RMPP transfers, without a clock or a socket.

Agents drive L{txrdma.mad.core.calls}; the other modules are its parts. C{transactions} has open requests of
this end, C{answers} what their answers contain. L{txrdma.mad.server} processes the requests of peers, and
uses C{recent} to detect repeated notices.
"""
