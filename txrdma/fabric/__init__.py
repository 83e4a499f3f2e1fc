"""
A subnet as it was found: its nodes, ports and links, ways to find them, and what is wrong with them.
"""
