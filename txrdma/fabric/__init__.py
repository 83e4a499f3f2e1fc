"""
Model of a subnet with its nodes, ports and links; sweeps that discover it; and checks of the result.

Of the checks, C{health} examines links, identifiers, subnet managers and counters; C{routechecks} the
forwarding tables, also for credit loops (C{creditloops} then compares virtual lanes); C{cables} the cables
and their modules. C{rootcause} decides which findings explain others.
"""
