"""
Model of a subnet with its nodes, ports and links; sweeps that discover it; and checks of the result.

Of the checks, C{health} examines ports and counters; C{routechecks} the forwarding tables, credit loops among
them (C{creditloops} then compares virtual lanes); C{cables}, C{rootcause} and others what their names say.
"""
