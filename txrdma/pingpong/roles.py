"""
Who asks and takes the time, and who answers.
"""
