"""
Connections of devices whose kernel has a communication manager of its own, by librdmacm.
"""
