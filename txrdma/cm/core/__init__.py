"""
Protocol cores of the communication manager: state machines, their events, and a dispatcher, without I/O.
"""
