"""
A dissector of SMC in captures, for C{txrdma decode}.

Modules, lowest first:

 - C{tcp}: TCP segments and their options.
 - C{words}: CLC and LLC messages as text.
 - C{conversation}: connections, links and cursors, from packets.
 - C{capture}: decodes a capture, and shows its conversations.
"""
