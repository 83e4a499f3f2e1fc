"""
Detection that both ends support SMC, before any byte is sent.

 - C{local} and C{localclient}: announcements between processes of one host; C{neighbours}: across containers.
 - C{configured}: the endpoint string states it (C{peer=smc}).
 - C{option}: a TCP option by eBPF.
 - C{owners}: the users that own TCP sockets.
"""
