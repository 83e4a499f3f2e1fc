"""
Descriptions of simulated subnets.

 - C{netfile}: net files of ibsim, their parser and limits.
 - C{fattree}: generated fat trees.
"""
