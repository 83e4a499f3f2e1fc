"""
Layouts of the messages of SMC-R: CLC, LLC and CDC.

 - C{_clcframe}: what all CLC messages have in common: header, longest message, diagnoses, enterprise IDs,
   codes of buffer sizes.
 - C{_clcproposal}: the CLC Proposal.
 - C{_clcanswer}: CLC Accept and Confirm, also those of SMC-D, which are only decoded.
 - C{clc}: CLC Decline, decoding of any CLC message, and the filter for messages that cross the local Decline.
 - C{llc}: LLC messages, which manage links and keys.
 - C{cdc}: CDC messages: cursors and flags, with a fast encoder and decoder.
"""
