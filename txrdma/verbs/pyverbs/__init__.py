"""
Kernel devices through pyverbs, which only this package imports, and only on demand.

Modules, lowest first:

 - C{bindings}: imports pyverbs, and translates its errors.
 - C{attributes}: attributes of queue pairs and paths, converted.
 - C{facts}: attributes and limits of devices and ports, converted; how much a SEND may have inline is tried.
 - C{resourcetracker}: closes objects of pyverbs in order, and finds their descriptors.
 - C{memory}: memory regions and address handles.
 - C{requests}: work requests, converted and posted.
 - C{queues}: completion channels and completion queues.
 - C{sharedreceives}: shared receive queues.
 - C{queuepair}: queue pairs: which requests are posted as signaled, a full queue, requests of a removed
   device.
 - C{events}: reads the device's events, and detects that it was removed, even if the driver reports nothing.
 - C{device}: opens a device, makes protection domains, and reports events.
"""
