"""
Byte streams over RDMA connections, with the protocol of librdmacm's rsockets.

The core, without I/O:

 - C{messages}: connection data, targets and immediate data on the wire.
 - C{_requests}: the send requests to post, and which of them are signaled (C{SIGNAL_EVERY}).
 - C{_receiving}: received bytes: which half of the buffer is free again, and how many credits are due.
 - C{_sending}: bytes to send: into which target, and how long a message is.
 - C{_mapping}: memory that the ends map for each other's writes, and the entries about it.
 - C{_core}: both directions together: posts the messages that offer a half and give credits, control messages
   (C{CONTROLS}), closing; sizes of buffers (C{Sizes}, C{SMALLEST_BUFFER}).

Streams:

 - C{mapped}: mapped memory at one end, with its Deferreds.
 - C{transport}: the transport of a stream.
 - C{stream}: the end of a stream on a queue pair: posts what the core decides, reposts receives, and
   disconnects (the private data of the DREQ).
 - C{endpoints}: options with their ranges (C{RANGES}) and defaults; clients and listeners.
 - C{strings}: the keys of C{rsocket:} endpoint strings.
"""
