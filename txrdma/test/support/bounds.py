"""
The limit of each table in packages that serve peers, which L{txrdma.test.unit.kit.test_tables} checks.

A table is an attribute that a class creates, or a name that a module assigns, as an empty dictionary, list,
set, deque, counter or bytearray, or as an empty tuple or empty bytes that its module replaces by longer ones.
The author of a new one adds it to C{BOUNDS}, as C{package.Class.attribute} or C{package.module.name}: below
the name of the constant that is its limit, or, if no peer can fill it without limit, below the reason. Each
such constant is a limit of L{txrdma.test.support.limits}, with a test that reaches it.
"""

from __future__ import annotations

from typing import Final

REASONS: Final = {
    "LOCAL": "Calls of the program, its configuration, and answers to limited requests add entries.",
    "TURN": "It is emptied in the call that fills it, or by the caller before the next datagram.",
    "FIXED": "The possible entries are known: names in the code, sizes at construction, widths of fields.",
    "PART": "A fixed number for each connection, request, credit, or entry of a queue or another table.",
    "USER": "The kernel, or processes of this user or of users that it trusts, add entries.",
}
"""Reasons why no peer can fill a table without limit."""

BOUNDS: Final = {
    "LOCAL": """
        btl.Answerer.functions btl.BTLMessageTransport._handlers,_unlimited,_ready btl.ByteStream._unsent
        btl.ConnectionMemory._regions btl.Group._operations,_receives
        btl.BTLWork._futures btl.ReactorThread._calls
        btl.Message.tags,bodies btl.Ordering.tags btl.Outbox._windows btl.Peer.urgent,usual
        btl.Regions._regions btl._TagQueue.requests btl._Window.waiting cm.Attempts._pending
        cm.Adapter.followers fabric.Recording.answers monitor.WhatIf.alerts,sent,_recorded
        monitor.WhatIf._invalid,_firstErrors
        cm.ConnectionManager._handlers,_services,_resolving cm.Dispatcher._peerToPeer,_resolutions,_listeners
        cm.EndMappings._writes,_waiting cm.KernelManager._handlers cm.Mappings.orders,_localRanges
        cm.PathMigration._arming cm.SendQueue.waiting cm.Sending._waiting cm.ServiceClaims._claims
        cm._Receiver._found
        fabric.NodeNames.names fabric.Thresholds.limits mad.MADSchedule._waiting,_outstanding
        mad.MADServer._handlers mad.PortWatch._polling mad.Registrations._known
        mad.Runner.running,wanting,_sources,_ready mad.SATransactor._lids mad.Servers._servers
        mad.Task.children,_answers mad.Transactions.open,_pausing mad.UmadPort._awaited
        monitor.ConfigReader.mistakes,_wrong monitor.EventHub._edges monitor.FabricPoller._running
        monitor.ReplacedFabrics._left
        monitor.MaintainedFiles.problems,_written monitor.Notifier._added,_queues
        monitor.SupervisedLoop._waiting monitor.Supervisor.loops monitor.Tallies._limits,_windows
        monitor.CounterReader._interrupted monitor._Link.waiting,_open,_requests monitor._TimedWait.receivers
        smc.AnnouncementChannel._open smc.Flow.context,pending smc._LoopbackReceiver._addresses
        smc._Searches.current,absent smc._Search.waiting soft.HostInterfaces._recent soft.KeyTable._regions
        soft.AttachedRoutes.routes
        soft.RemoteMemory._preparing soft.RoCEPort._groups
        soft.SoftDevice.domains,addressHandles,sharedReceiveQueues,_queuePairs,_numbers,_channels
        soft.SoftDevice._completionQueues
        soft.SoftProtectionDomain._queuePairs streams.StreamConnection.context
        unix.StatusServer.parts,_counters,_answering
        kit.Arguments._keys kit.ForwardClock._listeners kit.Listeners._known kit.Spool.records
        kit._Stop.listeners pingpong.Activity.calls ports.EndPortWatcher._calls
        tap.FabricsService.monitors verbs.PollingReactor._pollables,_live,_hits verbs._Share._unsubscribers
        verbs.PyverbsDevice._channels,_completionQueues,_domains,_queuePairs,_readers
        verbs.PyverbsProtectionDomain._handles,_queuePairs,_regions,_shared
        verify.MeasuringClient._calls verify.Serving._ports verify.WorkerSupervisor.checks,measurements
        verify.RoundTripTimer._times
        verify.Worker._errors,_rest
        btl.aio._reactors btl.module._modules cm.adapter._adapters kit.delayedcalls._nextCalls
        btl.requests._methods
        kit.forwardclock._shared kit.shutdown._stops smc.control._answering smc.groups._open
        smc.localclient._channels smc.netns._searches smc.reactoruse._uses smc.shared._logged,_byReactor
        smc.silence._ofReactor verbs.device._open verbs.devices._openDevices
    """,
    "TURN": """
        btl.FastPath._events btl.Module._events btl.ModulePort._touched btl.Rendezvous._proved
        cm.Dispatcher._packets,_events,_freed
        cm.ExchangeCore.pendingEvents,pendingMessages cm.Mappings.events cm.RequestQueue.batch
        mad.Calls._packets,_events
        mad.RMPPReceiver._answers mad.RMPPTransfers._packets,_events smc.Lifecycle.pending
        smc.LinkGroupCore.output,pending smc._Core.output,pending
        soft.Coordinator._events soft.Datagrams._events soft.LocalPeers._written
        soft.Requester._events soft.Responder._events soft.SoftDevice._events
        kit.NextCalls._calls,_running kit.machines.postponed
    """,
    "FIXED": """
        fabric.RecordingRPCs.lost
        btl.Channel._receives,_refused btl.ChannelPort.channels btl.Congestion._minima
        btl.ModulePort._channels,ports
        btl.Outbox.unlimited btl.PeerConnection._local btl.ReceiveBuffer._orders,_free
        btl.RoundTripEstimate._minima
        btl._Route.destinations cm.Adapter._gidTables,_gidIndexes,_attributes,_readers
        cm.DatagramTransport._queuePairs
        cm.Dispatcher.counters cm.KernelManager.counters cm.Managed.names cm.Mappings._peerRanges
        cm.Part.requests cm.ReceiveMemory._pools cm.Sending._targets fabric.Counted.errors,data,details
        fabric.Node._guids mad.MADAgent._checked mad.SATransactor._nodes mad.Timeouts._known
        mad.Transactions._drawn mad.UmadPort._agents,_served mad.VerbsPort._closers,_used
        monitor.CounterExposition._templates monitor.ErrorThresholds._judged
        monitor.HistoryStore._known,_sizes,_sources monitor.Metrics._fabricFamilies
        monitor.ReadingKind._requests monitor.SupervisedLoop._logged
        monitor.Tally._parts monitor._Visit.values monitor.RetainedPieces._known
        monitor._Scrape.pieces monitor._Shared.found
        smc.EndpointPolicy._logged
        smc.LinkGroup._domains smc.Lifecycle._afterRead smc.Link._used smc.RealPorts.failed
        smc.Snapshots._families,_served soft.Answers._results
        soft.Coordinator._receiving,_positions,_seen,_probes soft.DirectDatagrams.received
        soft.LaneReceiver._short soft.UDPPeer._sendingRuns soft.RecentNumbers._numbers
        soft.Responder._finalEvents
        soft.RoCEPort._grids soft.SharedQueuePair._doorbells soft.SoftCompletionQueue._completions
        soft.UDPPeer._classes soft._incoming._SHORT soft.UDPCarrier._reported unix.StatusServer._ended
        kit.Prover._data kit.RemoteSender.lost kit.StateTable._states kit._Builder._states
        pingpong.Samples._counts tap.Statistics.modes tap.Threads._pools verify.StreamService._head
        cm.sendqueue._NONE fabric.adaptive.STATIC kit.wire._uncompiled mad.attributes._registered
        mad.sa._components monitor.rows.RENAMED smc.counting.connections,fallbacks,refused,ended
        smc.flow._NOTHING soft._entries.NO_ENTRIES soft._incoming._NONE soft._outgoing._NONE
        verbs.requests._bad
    """,
    "PART": """
        btl.FastPath._peers,_earlyLimits btl.Module._ready,_losing,_probing,unmarked btl.ModulePort._unneeded
        btl.Peer.writing btl.PendingAcks.peers btl.RemoteReceiveBuffers._lengths
        btl.SendWindow._slots,_lost btl.Server._tasks
        btl.Timetable._touched,_heap btl.Transmissions.trail cm.Adapter._queues,_pairs
        cm.ConnectionManager._peerClaims,_connections cm.Dispatcher._connections,_byPeer,_byQP
        cm.EventChannel.identifiers cm.KernelManager._connections cm.Life._inbox
        cm.LongMessageReader._answers cm.Managed.slot cm.RSocket._inFlight cm.Receiving._lengths
        cm.RequestQueue._pool cm.SendQueue.posted,_overhead,_free,_unread,_behind cm.SendRegions._regions
        cm.SharedCompletionQueue.handlers,_waiting cm._Pool._free mad.Calls._tables,_redirected
        monitor._Reading.parts,read
        smc.Announcements.expected,_admitted,_queue smc.ClientNegotiation._unread smc.CloseNotifier._waiting
        smc.KeyExchanges._late smc.LinkExchanges._deletions smc.LinkGroups._orphans,_targets
        smc.LinkSendQueue.dirty,flushed,_writes,_marks,unacknowledged
        smc.ReactorUse._uses,_parts smc.SendScheduler._undelivered,_soon,_atEnd smc._KeyRequest.announcedOn
        soft.Answers.waiting soft.Datagrams._posted soft.LaneReceiver._ready
        soft.LaneSender.outstanding,waiting soft.LocalDoorbells._numbers soft.Requester._entries,_reads
        soft.RoCEPort._routes,_touched,_unsent,_deadlines,_more soft.SoftCompletionChannel._queues,_events
        soft.DoorbellPage._dormant,_free
        soft.SoftCompletionQueue._members,_awake,_dormant,_lanes,_polls,_arms soft.SoftQueuePair._held
        soft.SoftSharedReceiveQueue._takers soft.UnopenedLane._waiting
        soft._ConnectedDevice.queuePairs,_unopened,_postponed streams.StreamConnection._rest
        kit.Shares._entries kit.ByteShares._used
        kit.TimerWheel._order,_slots tap.ProxyFactory.pairs verbs.PyverbsCompletionChannel._queues,_rung
        verbs.PyverbsCompletionQueue._localCompletions,_members verbs.PyverbsQueuePair._receives,_sends
        verbs.PyverbsSharedReceiveQueue._consumers,_receives verbs.ReceiveWorkRequests._cache
        verbs.SendWorkRequests._workRequests verbs.Sources._disarms,_pairs
        smc.connectionstatus._live verbs.requests._idle
    """,
    "USER": """
        btl.Prefixer._rest kit._Output._output,_errors smc._SocketCache._sockets
        soft.Coordinator._services soft.PeerDevice.lines soft.SharedDatagrams._datagramLinks
        soft.SharedMemoryPort._peers,_links soft._ConnectedDevice.lines
    """,
    "btl.connections._EARLY": "btl._Client._early",
    "btl.connections.MOST_OPENING": "btl._ListenerClients._exchangesOf",
    "btl.connections.MOST_WAITING": "btl._ListenerClients._clientsOf,unintroduced,queued",
    "btl.core.assembly.MOST_MESSAGES": "btl.Assembly._incomplete",
    "btl.core.earlypackets.MOST_NAMES": "btl.EarlyPackets._packets",
    "btl.core.flow.WINDOW": "btl.BTLMessageTransport._undelivered btl.ByteStream._read",
    "btl.core.ordering.MOST_HELD": "btl.Ordering.waiting",
    "btl.groups.terms.MOST_MEMBERS": """
        btl.Group._values btl.Joining._proved,_connecting btl.Members.transports,_connections,left,_missed
        btl.Launch._ends btl.Rendezvous._lines,_addresses,_left,_causes
        btl.SharedAlgorithms._views btl.Slots._sleeps,_woken,others
    """,
    "btl.inbox.MOST_TAGS": "btl.Inbox._tags,_unreceived",
    "btl.inbox.MOST_UNRECEIVED": "btl.BTL._received btl._TagQueue.messages",
    "btl.introductions.LONGEST_FRAME": "btl.PeerConnection._received",
    "btl.lifeline.MOST_EARLY": "btl.PeerConnection._early",
    "btl.requests.MOST_CALLS": """
        btl.Answerer._waiting,_lengths,_running btl.PendingRequests._queued,_sent,_outcomes
    """,
    "cm.connections.datagramqueues.HANDLES": "cm.DatagramQueuePair._handles",
    "cm.core.dispatcher.MOST_SIDR_REQUESTS": "cm.Dispatcher._sidrRequests",
    "fabric.creditloops.MOST_PATHS": "fabric.Lanes.levels",
    "fabric.sweepbounds.MOST_NODES": """
        fabric.CounterReport.ports,silent fabric._NodeReading.counted fabric.Fabric.nodes
        fabric.LIDSweep._links fabric.LaneSurvey._crossings fabric.Lanes.mappings fabric.RecordSweep._ends
        fabric.BlastRadius.hosts,_peers,_ends,_attached,_own,_outs,_routed,_levels,_groups
        fabric.HostsByName._nodes fabric.Loss.cutOff,switches,byHost,reduced,jobs
        fabric.Refresh.touched,changed,_known,_loose fabric.RouteCheck.found,cyclic,_waits,_beyond
        fabric._Choices._onward,_numbers,_general,_seen
        fabric.AdaptiveGroups._entries,_masks fabric.CableWatch.cables,exchanged,_doubtful,_changed
        fabric.UnableNodes._failures
        fabric.SASweep._lids fabric._TableView._switches,_groups fabric.SteadyNames._nodes
        fabric.Sweep._lanes,_waiting,_open,_known fabric.Tables.linear,pkeys,lanes,firmware
        fabric.Tables.adaptive,unknownAdaptive,cables,unread
        fabric._Congestion._congested fabric._Lane.waiting
        monitor.AlertTracker.sent,_unseen,_waiting,_leaving
        monitor.CableMoves._changed monitor.CongestionReader.waits,full,_ticks,_marks,_unable
        monitor.CorrectionReader.meters,_capabilities,_forms,_unable,_silences
        monitor.CounterReader.meters,changed,_visits,_running
        monitor.DetailReader.causes,_explained,_unable
        monitor.ErrorThresholds._downs,_links,_restarts,_resets,_down,_trained,_recent,_full,_former,_causes
        monitor.FabricPoller.firmware,linear,_rotation monitor.FabricDiagnosis._touched
        monitor.ChangeSigns.nodes,_ports
        monitor.FindingLog._pending,open
        monitor.TopologyWatch._appeared,present,linked,lost,came monitor.Tallies._tallies
        kit.BackOff._silent monitor._Visit.stops,pending,doubted,states tap.HistoryReplay._growing
    """,
    "fabric.sweepbounds.MOST_PROBLEMS": "fabric.Fabric.problems fabric.Sweep.unprocessed",
    "fabric.sweepbounds._MOST_CUTS": "fabric.Bounds.cuts",
    "kit.logs._MOST": "kit.RateLimitedLogger._entries",
    "kit.proofs.MOST_UNPROVED": "kit._ServerFactory._unproved",
    "kit.remotesender.MOST_ANSWER": "kit._BodyReader.body",
    "kit.remotesender.MOST_QUEUED": "kit.RemoteSender._queue",
    "kit.webaccess.MOST_GUESSERS": "kit.Guesses._known",
    "kit.webaccess.MOST_LOGINS": "kit.AccessControl._logins",
    "mad.core.answers.MOST_RECORDS": "mad.Records.decoded",
    "mad.core.recent.MOST_REMEMBERED": "mad.Recent._known",
    "mad.core.rmpp.LONGEST_MESSAGE": "mad.RMPPReceiver._parts",
    "mad.core.rmpp.WINDOW": "mad.RMPPReceiver._behindGap",
    "mad.core.timeouts.MOST_SLOW": "mad.Timeouts._slow",
    "mad.core.transfers.MOST_ANSWERS": "mad.RMPPTransfers._outgoing",
    "mad.core.transfers.MOST_REMEMBERED": "mad.RMPPTransfers._incoming",
    "mad.ports.descriptor.MOST_WAITING": "mad.IbsimPort._waiting mad.VerbsPort._waiting",
    "mad.ports.verbsport.HANDLES": "mad.VerbsPort._handles",
    "mad.server.MOST_PENDING": "mad.MADServer._pending",
    "monitor.collecting.collector.MOST_MONITORS": "monitor.CollectorFactory.connections",
    "monitor.collecting.wire.MOST_CALLS": "monitor.CollectorProtocol._waiting,_running,_results",
    "monitor.diagnosis.cablemoves.MOST_FAULTS": "monitor.CableMoves._faults",
    "monitor.diagnosis.findinglog.MOST_CLEARED": "monitor.FindingLog._closed,_returning",
    "monitor.diagnosis.topologywatch.MOST_GONE": """
        monitor.TopologyWatch.missingNodes,missingLinks,_hung,_unreached monitor.WhatIf._links,_gone""",
    "monitor.diagnosis.findinglog.MOST_COMMENTS": "monitor.Entry.comments",
    "monitor.events.notificationqueue.MOST_ALERTS": """
        monitor.NotificationQueue._waiting,_repeated monitor.Notifier._due
    """,
    "monitor.reading.changesigns.MOST_NEW": "monitor.ChangeSigns.newNodes",
    "monitor.series.eventtable.MOST_STATES": "monitor._Drawing._added,_hosts,_joined,_removed,_worst",
    "monitor.series.history.MOST_EVENTS": "monitor.EventTable._uncertain",
    "monitor.series.history.MOST_ROWS": "monitor.BatchWriter._rows",
    "monitor.series.remotewriter.MOST_ROWS": "tap.Duty._unsure",
    "monitor.series.historystore.MOST_PORTS": "monitor.HistoryStore._ports,_last",
    "monitor.web.events._REPEATED": "monitor.EventHub._unsent",
    "monitor.web.events.MOST_READERS": "monitor.EventHub.readers",
    "monitor.web.scrapes.MOST_SCRAPES": "monitor.Scrapes._scrapes",
    "monitor.web.searches.MOST_RESULTS": "monitor.Searches._results",
    "monitor.web.site.MOST_CLOSING": "monitor.MonitorFactory._closing",
    "monitor.web.site.MOST_CONNECTIONS": """
        monitor.MonitorFactory._waiting,_clients monitor._Scrape.scrapers monitor._Shared.waiting
    """,
    "monitor.web.events.MOST_WAITING": "monitor.Reader._waiting",
    "pingpong.bootstrap.LONGEST": "pingpong.LineSplitter._held",
    "pingpong.compatible.LINE_BYTES": "pingpong._Exchange._held",
    "pingpong.conversation._MOST_WAITING": "pingpong.Conversation._received",
    "smc.common.realports._MOST_CHOICES": "smc.RealPorts._choices",
    "smc.flow.flow._EARLY": "smc.Flow.early",
    "smc.terms.offer.MOST_CONNECTIONS": """
        smc.LinkGroup.flows,_waiting,_lingering smc.Link.members smc.LinkGroupProtocol.connections
    """,
    "smc.group._linkgroup.MAX_RKEYS": "smc.LinkLife.remoteKeys smc._Adding.left",
    "smc.signalling.local._MOST_EXPECTED": "smc.AnnouncementConnection.open",
    "smc.signalling.local._MOST_OTHER_USERS": "smc.Announcements.connections",
    "smc.signalling.netns._MOST_QUERIED": "smc._Search._candidates",
    "smc.signalling.silence.MOST": "smc.SilentPeers._until",
    "smc.terms.options.GROUPS": "smc.LinkGroups._groups",
    "smc.terms.options.HANDSHAKES": "smc.GroupRateLimiter._waiting",
    "smc.terms.options.MEMORY": """
        smc.BufferPool.announced,_buffers smc.KeyExchanges._queued,_pending smc.LinkGroupCore.known
        smc.LinkLife.localTokens
    """,
    "smc.wire._clcframe.MAX_LENGTH": "smc._Core.buffer smc.Negotiation._early smc._CLCStripper._unread",
    "soft.host._coordinator.SERVICES": "soft.PortMember._services",
    "soft.host.member.LINES": "soft.Forwarder.members soft.PortMember._lines",
    "soft.rc.peers._LENGTHS": "soft.UDPPeer._takingSums",
    "soft.rc.roce._PEERS": "soft.RoCEPort._peers",
    "soft.shared._doorbells.MOST": "soft.PeerDoorbells._bells",
    "soft.shared.datagrams.MOST_POLLED": "soft.SharedDatagrams._polledLanes",
    "soft.shared.sharedmemoryport.MOST_UNANSWERED": "soft._ConnectedDevice._unanswered",
    "soft.shared.sharedmemoryport._MOST_WAITING": "soft._ConnectedDevice._invitations",
    "soft.shared.sharedqueuepair.MOST_REGIONS": """
        soft.RemoteMemory.regions soft.SharedQueuePair._mappings
    """,
    "soft.shared.unixpackets._MOST_QUEUED": "soft.PacketSocket._queued",
    "unix.answers._LONGEST_ANSWER": "unix._Asking._chunks",
    "unix.lines.LONGEST": "unix.Lines._rest",
    "unix.lines.MOST_UNREAD": "unix.Lines._unsent",
    "verify.serving.MOST_CONNECTIONS": "verify.Serving._connections",
}
"""Tables by reason, or by the name of the constant that limits them, without C{txrdma}."""
