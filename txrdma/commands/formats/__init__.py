"""
Output and input formats: tables of devices, dot, C{ibnetdiscover}'s listing, snapshots.

 - C{devicetables}: tables of devices.
 - C{pingpongtables}: tables of measurements.
 - C{dot}: a fabric for Graphviz.
 - C{ibnetdiscover}: a fabric as infiniband-diags lists it.
 - C{snapshot}: a fabric as JSON with names and chassis.
"""
