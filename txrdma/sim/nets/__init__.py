"""
Descriptions of simulated subnets.

 - C{netfile}: net files of ibsim, their parser and limits (C{MOST_PORTS}).
 - C{fattree}: generated fat trees.
"""
