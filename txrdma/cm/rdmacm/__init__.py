"""
Connections by the kernel's communication manager, through librdmacm.

 - C{library}: structures and functions of librdmacm, and its errors.
 - C{messages}: REQs and REPs made from what the kernel reports.
 - C{manager}: the manager and its connections (C{RESOLVE_SECONDS}); whether a device is managed by the
   kernel.
"""
