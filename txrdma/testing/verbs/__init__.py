"""
The contract of verbs devices, in parts, and simulations of two queue pairs.

To test a device, inherit L{txrdma.testing.contracts.VerbsDeviceContract}, which combines C{transfers},
C{atomics}, C{faults}, C{refusals}, C{lifecycle}, C{events}, C{descriptions} and C{sharedreceives}, and
implement the first three methods of L{txrdma.testing.verbs.ends.TwoEnds}. Permitted differences between
devices are declared in L{quirks <txrdma.testing.verbs.quirks>}.
"""
