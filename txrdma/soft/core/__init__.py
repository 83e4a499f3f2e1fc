"""
Memory regions, completion queues and queue pairs of the software device, and the interface of its routes.

 - C{memory}, C{pieces}: memory regions, and access to them.
 - C{route}: the interface of the routes of queue pairs; C{routeport}: the local end of routes of one kind.
 - C{completion}: completion queues, which poll their routes. An idle route becomes dormant until a request is
   posted, or its peer sets its byte of the C{doorbellpage}.
 - C{queuepair}: queue pairs, with C{transitions}, C{sharedreceives} and C{directdatagrams}.
 - C{netdev}, C{recent}, C{roundtrip}: properties of ports, released numbers, and timeouts.
"""
