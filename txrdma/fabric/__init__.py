"""
A subnet as sweeps find it: nodes, ports and links, the sweeps themselves, and checks of what they found.
"""
