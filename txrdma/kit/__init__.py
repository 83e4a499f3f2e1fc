"""
Tools that know nothing about RDMA.

 - L{txrdma.kit.wire}, L{txrdma.kit.rawfields}: binary layouts, and single fields of encoded messages.
 - L{txrdma.kit.values}, L{txrdma.kit.machines}: frozen values and state tables that are quick to import.
 - L{txrdma.kit.deadlines}: many deadlines on one timer.
 - L{txrdma.kit.strings}: parameters of endpoint and device strings.
 - L{txrdma.kit.limits}: the limits of what a peer can make a process keep, do or wait for.
 - L{txrdma.kit.logs}: logging that a peer cannot flood.
"""
