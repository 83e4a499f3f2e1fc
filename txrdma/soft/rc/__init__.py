"""
Reliable connections and datagrams as RoCE v2 packets over UDP: C{_requester} resends, C{_responder} executes.
"""
