"""
The communication manager: how two queue pairs find each other and become a connection.
"""
