"""
Programs that others have written, as the two ends of a stream: each is told a string, and nothing else.
"""
