"""
Mistakes for TCP: players that import one of these modules have a transport that does not do what it should.

Each stands for something that a provider of streams may get wrong, and that conversations have to find.
"""
