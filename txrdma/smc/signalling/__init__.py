"""
How two ends find out that both support SMC, before any byte is sent.

 - C{local} and C{localclient}: announcements between processes of one host; C{neighbours}: across containers.
 - C{configured}: the endpoint string says so (C{peer=smc}).
 - C{option}: a TCP option by eBPF.
 - C{owners}: which user owns a TCP socket.
"""
