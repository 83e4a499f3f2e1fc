"""
Limits on the memory, work and waiting time that peers can cause in this process.

C{LIMITS} is the complete list. C{docs/limits.md} is generated from it, and a test checks that each limit
exists, has a value, and names a test that reaches it. The values are constants of the modules that use them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final, NamedTuple


class Limit(NamedTuple):
    """
    A limit on what a peer can cause.

    @ivar part: the prefix of endpoint strings, such as C{smc:}, or a part of txrdma, such as C{mad}.
    @ivar name: what is limited, with its unit.
    @ivar constant: full name of the module-level constant that has the value.
    @ivar reached: what happens at the limit.
    @ivar test: a test that reaches it, without C{txrdma.test}.
    @ivar key: the key of an endpoint string that sets it, if there is one.
    """

    part: str
    name: str
    constant: str
    reached: str
    test: str
    key: str = ""

    @property
    def value(self) -> int | float:
        """The default value of the limit."""
        module, _, name = self.constant.rpartition(".")
        value: int | float = getattr(import_module(module), name)
        return value


_WAITS: Final = "The next one waits for its turn."
_OLDEST: Final = "The oldest are dropped."
_CLOSED: Final = "The next connection is closed at once."

LIMITS: Final = (
    # smc:
    Limit(
        "smc:",
        "handshakes of a listener at a time",
        "txrdma.smc.terms.options.HANDSHAKES",
        "The next client gets plain TCP.",
        "integration.smc.test_options.LimitTests.test_handshakes",
        "handshakes",
    ),
    Limit(
        "smc:",
        "link groups of a process",
        "txrdma.smc.terms.options.GROUPS",
        "The oldest group without connections is closed; if there is none, the connection is plain TCP.",
        "integration.smc.test_options.LimitTests.test_groups",
        "maxgroups",
    ),
    Limit(
        "smc:",
        "bytes of all rings of a process",
        "txrdma.smc.terms.options.MEMORY",
        "The oldest group without connections is closed; if there is none, the connection is plain TCP.",
        "integration.smc.test_options.LimitTests.test_memory",
        "maxmemory",
    ),
    Limit(
        "smc:",
        "connections of a link group",
        "txrdma.smc.group._linkgroup.MAX_CONNECTIONS",
        "The next connection begins another group.",
        "integration.smc.test_full_groups.FullGroupTests.test_burst",
    ),
    Limit(
        "smc:",
        "buffers of a peer in a link group",
        "txrdma.smc.group._linkgroup.MAX_RKEYS",
        "The group is closed: the peer breaks the rules of LLC.",
        "unit.smc.test_rkeys.RKeyTests.test_tooMany",
    ),
    Limit(
        "smc:",
        "bytes of a CLC message",
        "txrdma.smc.wire._clcframe.MAX_LENGTH",
        "The connection is closed.",
        "unit.smc.test_clc.FramingTests.test_lengths",
    ),
    Limit(
        "smc:",
        "silent peers that are remembered",
        "txrdma.smc.signalling.silence.MOST",
        "The oldest one is forgotten.",
        "unit.smc.test_silence.SilenceTests.test_bounded",
    ),
    Limit(
        "smc:",
        "processes of other users that announce connections to a listener",
        "txrdma.smc.signalling.local._MOST_OTHER_USERS",
        "The next one is refused; processes of the same user take precedence.",
        "integration.smc.test_local.AnnouncementTests.test_otherUsersAreFew",
    ),
    Limit(
        "smc:",
        "announced connections of a process of another user",
        "txrdma.smc.signalling.local._MOST_OF_OTHER_USER",
        "The next one is refused, and is plain TCP.",
        "integration.smc.test_local.AnnouncementTests.test_otherUsersAreBounded",
    ),
    Limit(
        "smc:",
        "announced connections of a process of our user",
        "txrdma.smc.signalling.local._MOST_EXPECTED",
        "The next one is refused, and is plain TCP.",
        "integration.smc.test_local.AnnouncementTests.test_room",
    ),
    # btl:
    Limit(
        "btl:",
        "exchanges of a listener at a time",
        "txrdma.btl.connections.MOST_OPENING",
        _WAITS,
        "unit.btl.test_connections.ExchangeTests.test_turns",
    ),
    Limit(
        "btl:",
        "exchanges of one IP address at a time",
        "txrdma.btl.connections.MOST_OPENING_PER_ADDRESS",
        _WAITS,
        "unit.btl.test_unknown_clients.SilentTests.test_oneAddress",
    ),
    Limit(
        "btl:",
        "clients that wait for their exchange",
        "txrdma.btl.connections.MOST_WAITING",
        _CLOSED,
        "unit.btl.test_connections.ExchangeTests.test_turns",
    ),
    Limit(
        "btl:",
        "clients of one IP address that wait",
        "txrdma.btl.connections.MOST_WAITING_PER_ADDRESS",
        _CLOSED,
        "unit.btl.test_unknown_clients.SilentTests.test_oneAddress",
    ),
    Limit(
        "btl:",
        "seconds until a client introduces itself",
        "txrdma.btl.connections.INTRODUCTION_SECONDS",
        "Its connection is closed.",
        "unit.btl.test_unknown_clients.SilentTests.test_others",
    ),
    Limit(
        "btl:",
        "bytes sent to an address for each byte received, before the address is verified",
        "txrdma.btl.lifeline.AMPLIFICATION",
        "Nothing more is sent there until a nonce proves the address (RFC 9000, section 8).",
        "unit.btl.test_unknown_clients.AddressTests.test_farewells",
    ),
    Limit(
        "btl:",
        "bytes of messages before a connection is established",
        "txrdma.btl.core.module.MOST_EARLY_BYTES",
        "Further messages are not acknowledged, so that the peer sends them again.",
        "unit.btl.test_unknown_clients.EarlyTests.test_messages",
    ),
    Limit(
        "btl:",
        "messages before a connection is established",
        "txrdma.btl.lifeline.MOST_EARLY",
        "The connection is closed.",
        "unit.btl.test_unknown_clients.EarlyTests.test_number",
    ),
    Limit(
        "btl:",
        "bytes of a frame on the TCP connection, without its head",
        "txrdma.btl.introductions.LONGEST_FRAME",
        "The connection is closed.",
        "unit.btl.test_connections.ExchangeTests.test_invalidPeers",
    ),
    Limit(
        "btl:",
        "refusals of segments that a module has still to send",
        "txrdma.btl.core.owed.MOST_REFUSALS",
        _OLDEST,
        "unit.btl.test_module.LiarTests.test_refusals",
    ),
    Limit(
        "btl:",
        "incomplete messages of a peer",
        "txrdma.btl.core.assembly.MOST_MESSAGES",
        "Chunks of its next one are not acknowledged until others are finished.",
        "unit.btl.test_module.LiarTests.test_memory",
    ),
    Limit(
        "btl:",
        "bytes of a message that is taken in chunks",
        "txrdma.btl.core.assembly.LONGEST",
        "The message is refused, and its sender's Deferred fails.",
        "unit.btl.test_module.LiarTests.test_chunks",
    ),
    Limit(
        "btl:",
        "bytes of incomplete messages of all peers of a module",
        "txrdma.btl.core.assembly.MOST_BYTES",
        "Chunks are not acknowledged until others are finished.",
        "unit.btl.test_module.LiarTests.test_memory",
    ),
    Limit(
        "btl:",
        "bytes of incomplete messages of a peer",
        "txrdma.btl.core.assembly.MOST_OF_PEER",
        "Its chunks are not acknowledged until others are finished.",
        "unit.btl.test_unknown_clients.BesideTests.test_share",
    ),
    Limit(
        "btl:",
        "bytes of messages of all peers beyond these, one for each peer",
        "txrdma.btl.core.assembly.RESERVE_BYTES",
        "Chunks are not acknowledged until others are finished.",
        "unit.btl.test_unknown_clients.BesideTests.test_bound",
    ),
    Limit(
        "btl:",
        "bytes of a peer's messages that wait for their predecessors",
        "txrdma.btl.core.ordering.MOST_HELD",
        "Pieces in shared memory are sent again when the predecessors have arrived.",
        "unit.btl.test_unknown_clients.OneHostEarlyTests.test_gap",
    ),
    Limit(
        "btl:",
        "bytes of receive buffers for long messages of all peers; a quarter of ulimit -l on adapters",
        "txrdma.btl.receivebuffers.MOST_RECEIVE_BUFFERS",
        "Long messages go by packets.",
        "unit.btl.test_receivebuffers.OneHostMessageTests.test_shares",
    ),
    Limit(
        "btl:",
        "reads (get) of a peer that are answered at a time",
        "txrdma.btl.memory.MOST_GETS",
        "The next one is refused; those of this end wait.",
        "unit.btl.test_connections.MemoryTests.test_manyGets",
    ),
    Limit(
        "btl:",
        "bytes of a tag without a handler that the program has not received",
        "txrdma.btl.core.flow.WINDOW",
        "Further messages wait at their sender; a peer that sends them is closed.",
        "unit.btl.test_receiving.LiarTests.test_window",
    ),
    Limit(
        "btl:",
        "bytes of a connection that the program has not received",
        "txrdma.btl.inbox.MOST_UNRECEIVED",
        "The connection is closed.",
        "unit.btl.test_receiving.LiarTests.test_bytes",
    ),
    Limit(
        "btl:",
        "tags without a handler of a connection",
        "txrdma.btl.inbox.MOST_TAGS",
        "The connection is closed.",
        "unit.btl.test_receiving.LiarTests.test_tags",
    ),
    Limit(
        "btl:",
        "half of the calls of a peer that are not answered; those of this end",
        "txrdma.btl.requests.MOST_CALLS",
        "The connection is closed; those of this end wait.",
        "unit.btl.test_calls.LiarTests.test_tooMany",
    ),
    Limit(
        "btl:",
        "half of the bytes of calls of a peer that are not answered; those of this end; of answers under way",
        "txrdma.btl.requests.MOST_CALL_BYTES",
        "The connection is closed; those of this end wait, and so do calls whose answers are not sent.",
        "unit.btl.test_calls.LiarTests.test_tooLong",
    ),
    Limit(
        "btl:",
        "clients of a member of a group, a rendezvous or a collector that have not proved their rank",
        "txrdma.kit.proofs.MOST_UNPROVED",
        _CLOSED,
        "unit.kit.test_proofs.ProofTests.test_manyUnproved",
    ),
    Limit(
        "btl:",
        "seconds in which such a client must prove its rank",
        "txrdma.kit.proofs.PROOF_SECONDS",
        "The connection is closed.",
        "unit.kit.test_proofs.ProofTests.test_late",
    ),
    Limit(
        "btl:",
        "members of a group",
        "txrdma.btl.groups.terms.MOST_MEMBERS",
        "A larger group is refused.",
        "unit.btl.groups.test_terms.TermsTests.test_mostMembers",
    ),
    Limit(
        "btl:",
        "bytes of a line at the rendezvous of a group",
        "txrdma.btl.groups.rendezvous.LONGEST_LINE",
        "The connection is closed.",
        "unit.btl.groups.test_rendezvous.RendezvousTests.test_longLine",
    ),
    Limit(
        "btl:",
        "bytes of a member's reason why its group has failed",
        "txrdma.btl.groups.members.LONGEST_TEXT",
        "The connection is closed, and the group fails.",
        "unit.btl.groups.test_group.FailureTests.test_longReason",
    ),
    Limit(
        "btl:",
        "bytes of a member of a group in one step, in memory that its members share",
        "txrdma.btl.groups._slots.AREA_BYTES",
        "Longer data takes several steps, and longer items are sent in messages.",
        "unit.btl.groups.test_sharedalgorithms.SharedAlgorithmTests.test_items",
    ),
    # rdma:, ib:, rsocket:
    Limit(
        "rdma:",
        "connections of a listener that are asked for and not established (ib: and rsocket: likewise)",
        "txrdma.cm.core.dispatcher.BACKLOG",
        "The next REQ is dropped; its sender repeats it.",
        "unit.cm.test_badinput.StrangerTests.test_flood",
    ),
    Limit(
        "rdma:",
        "stored answers to SIDR requests",
        "txrdma.cm.core.dispatcher.MOST_QUESTIONS",
        "The next one is dropped; its sender repeats it.",
        "unit.cm.test_badinput.StrangerTests.test_manyQuestions",
    ),
    Limit(
        "rdma:",
        "bytes of a message (ib: likewise)",
        "txrdma.cm.terms.LONGEST",
        "The connection is closed; a conforming peer refuses to send the message.",
        "unit.cm.test_longmessages.LiarTests.test_wrongNames",
        "longest",
    ),
    Limit(
        "rdma:",
        "services of a process at one address",
        "txrdma.soft.host._coordinator.SERVICES",
        "Further ones cannot be listened for.",
        "unit.soft.host.test_coordinator.CoordinatorTests.test_tooManyServices",
    ),
    Limit(
        "rdma:",
        "software devices that share port 4791 of an address",
        "txrdma.soft.core.netdev.SHARES",
        "Further ones cannot listen or connect there.",
        "integration.soft.test_device.OpeningTests.test_allTaken",
    ),
    Limit(
        "rdma:",
        "connections of processes of the same user to the one that coordinates port 4791",
        "txrdma.soft.host.member.LINES",
        "Further ones are closed; they are tried again.",
        "integration.soft.test_sharing.SharingTests.test_tooManyLines",
    ),
    # mad
    Limit(
        "mad",
        "requests whose handlers have not answered",
        "txrdma.mad.server.MOST_PENDING",
        "The next one is answered with BUSY.",
        "unit.mad.test_serving.PendingTests.test_tooMany",
    ),
    Limit(
        "mad",
        "concurrent incoming requests of several segments",
        "txrdma.mad.core.transfers.MOST_REQUESTS",
        "The next one is stopped (RMPP STOP).",
        "unit.mad.test_rmpp_long.EndTests.test_manyQuestions",
    ),
    Limit(
        "mad",
        "bytes of a request of several segments",
        "txrdma.mad.core.transfers.LONGEST_REQUEST",
        "It is stopped (RMPP STOP).",
        "unit.mad.test_rmpp_long.EndTests.test_limits",
    ),
    Limit(
        "mad",
        "bytes of an answer of several segments",
        "txrdma.mad.core.rmpp.LONGEST_MESSAGE",
        "It is stopped (RMPP STOP), and the call fails.",
        "unit.mad.test_faults_long.LyingTests.test_endless",
    ),
    Limit(
        "mad",
        "answers of several segments that go out at a time",
        "txrdma.mad.core.transfers.MOST_ANSWERS",
        "The next request is answered with BUSY.",
        "unit.mad.test_faults_long.AnsweringTests.test_many",
    ),
    Limit(
        "mad",
        "datagrams that wait while the send queue of a port is full",
        "txrdma.mad.ports.descriptor.MOST_WAITING",
        "Further answers are dropped, so that their requests are repeated; calls of this end fail.",
        "unit.mad.test_verbsport.CallTests.test_tooManyWaiting",
    ),
    Limit(
        "mad",
        "slow peers whose response time is remembered",
        "txrdma.mad.core.timeouts.MOST_SLOW",
        "The oldest one is forgotten.",
        "unit.mad.test_agent.PatienceTests.test_manySlow",
    ),
    Limit(
        "mad",
        "redirections of a call",
        "txrdma.mad.core.calls.MOST_REDIRECTIONS",
        "The call fails.",
        "unit.mad.test_redirections.RedirectTests.test_loop",
    ),
    Limit(
        "mad",
        "records of a table",
        "txrdma.mad.core.answers.MOST_RECORDS",
        "The call fails.",
        "unit.fabric.test_bounds.TableTests.test_records",
    ),
    # fabric
    Limit(
        "fabric",
        "nodes of a sweep",
        "txrdma.fabric.excess.MOST_NODES",
        "The sweep ends with a problem that reports it.",
        "unit.fabric.test_bounds.TableTests.test_nodes",
    ),
    Limit(
        "fabric",
        "hops of a directed route",
        "txrdma.fabric.excess.MOST_HOPS",
        "The sweep does not go further there, and lists a problem.",
        "unit.fabric.test_bounds.MirageTests.test_hops",
    ),
    Limit(
        "fabric",
        "problems that a sweep lists",
        "txrdma.fabric.excess.MOST_PROBLEMS",
        "Further ones are only counted.",
        "unit.fabric.test_bounds.TwinTests.test_problems",
    ),
    # monitor
    Limit(
        "monitor",
        "connections of its web pages",
        "txrdma.monitor.web.site.MOST_CONNECTIONS",
        _CLOSED,
        "unit.monitor.test_access.BoundTests.test_connections",
    ),
    Limit(
        "monitor",
        "readers of its events",
        "txrdma.monitor.web.events.MOST_READERS",
        "The next one gets status 503.",
        "unit.monitor.test_events.EventTests.test_most",
    ),
    Limit(
        "monitor",
        "events that wait for a reader",
        "txrdma.monitor.web.events.MOST_WAITING",
        "They are dropped, and the reader has to reload everything.",
        "unit.monitor.test_events.EventTests.test_crowd",
    ),
    Limit(
        "monitor",
        "bytes of events that wait for a reader",
        "txrdma.monitor.web.events.MOST_BYTES",
        "They are dropped, and the reader has to reload everything.",
        "unit.monitor.test_events.EventTests.test_crowd",
    ),
    Limit(
        "monitor",
        "scrapes that are made, sent or retained at a time",
        "txrdma.monitor.web.scrapes.MOST_SCRAPES",
        "The oldest is dropped, and the connections of its scrapers are closed.",
        "unit.monitor.test_scrapes.ScrapeTests.test_most",
    ),
    Limit(
        "monitor",
        "searches of its tables at a time",
        "txrdma.monitor.web.searches.MOST_SEARCHES",
        _WAITS,
        "unit.monitor.test_searches.SearchesTests.test_turns",
    ),
    Limit(
        "monitor",
        "pages of rows that are retained for equal requests",
        "txrdma.monitor.web.searches.MOST_RESULTS",
        _OLDEST,
        "unit.monitor.test_searches.SearchesTests.test_results",
    ),
    Limit(
        "monitor",
        "connections of a collector",
        "txrdma.monitor.collecting.collector.MOST_MONITORS",
        _CLOSED,
        "unit.monitor.test_collecting.CollectorTests.test_mostMonitors",
    ),
    Limit(
        "monitor",
        "calls of a monitor for which a collector has no result",
        "txrdma.monitor.collecting.wire.MOST_CALLS",
        "The connection is closed.",
        "unit.monitor.test_collecting.CollectorTests.test_mostCalls",
    ),
    Limit(
        "monitor",
        "bytes of a message between a monitor and a collector",
        "txrdma.monitor.collecting.wire.MOST_BYTES",
        "The connection is closed.",
        "unit.monitor.test_collecting.CollectorTests.test_mostBytes",
    ),
    Limit(
        "monitor",
        "wrong passwords for a name from an address",
        "txrdma.kit.webaccess.MOST_GUESSES",
        "No password is compared for a while.",
        "unit.monitor.test_access.AccessTests.test_forgotten",
    ),
    Limit(
        "monitor",
        "names and addresses with wrong passwords",
        "txrdma.kit.webaccess.MOST_GUESSERS",
        "The oldest is forgotten.",
        "unit.monitor.test_access.AccessTests.test_manyGuessers",
    ),
    Limit(
        "monitor",
        "bytes of a webhook's answer",
        "txrdma.monitor.events.channels.MOST_ANSWER",
        "The connection is closed.",
        "integration.monitor.test_notifier.ChannelTests.test_webhook",
    ),
    Limit(
        "monitor",
        "alerts that wait for a channel",
        "txrdma.monitor.events.notificationqueue.MOST_ALERTS",
        "The oldest are dropped.",
        "unit.monitor.test_outlets.QueueTests.test_bounded",
    ),
    Limit(
        "monitor",
        "changes in its journal",
        "txrdma.monitor.diagnosis.journal.MOST_CHANGES",
        _OLDEST,
        "unit.monitor.test_memory.BoundTests.test_changes",
    ),
    Limit(
        "monitor",
        "cleared findings",
        "txrdma.monitor.diagnosis.findinglog.MOST_CLEARED",
        _OLDEST,
        "unit.monitor.test_findings.LedgerTests.test_bounded",
    ),
    Limit(
        "monitor",
        "new nodes of which notices report, before the next refresh",
        "txrdma.monitor.reading.poller.MOST_NEW",
        "The whole fabric is swept instead.",
        "unit.monitor.test_keeping_true.EventTests.test_manyNewNodes",
    ),
    Limit(
        "monitor",
        "sweeps that hosts can cause in a period",
        "txrdma.monitor.reading.poller.MOST_UNPLANNED",
        "The next one waits for the end of the period.",
        "unit.monitor.test_keeping_true.EventTests.test_storm",
    ),
    Limit(
        "monitor",
        "readings that wait for the disk",
        "txrdma.monitor.series.history.MOST_ROWS",
        _OLDEST,
        "unit.monitor.test_history.WriterTests.test_fullDisk",
    ),
    Limit(
        "monitor",
        "rows that wait for an engine's next batch",
        "txrdma.monitor.series.remotewriter.MOST_ROWS",
        _OLDEST,
        "unit.monitor.test_remote_writer.RemoteWriterTests.test_crowd",
    ),
    Limit(
        "monitor",
        "bytes that wait for an engine in memory, while the spill cannot be written",
        "txrdma.kit.remotesender.MOST_QUEUED",
        _OLDEST,
        "unit.kit.test_remotesender.SenderTests.test_fullDisk",
    ),
    Limit(
        "monitor",
        "bytes of an engine's answer to samples",
        "txrdma.kit.remotesender.MOST_ANSWER",
        "The connection is closed; the status counts.",
        "unit.kit.test_remotesender.SenderTests.test_longAnswer",
    ),
    Limit(
        "monitor",
        "bytes of an engine's answer to a query",
        "txrdma.monitor.series.promqlreader.MOST_ANSWER",
        "The connection is closed, and the chart stays empty.",
        "unit.monitor.test_promql_reader.ReaderTests.test_failures",
    ),
    Limit(
        "monitor",
        "series in an engine's answer",
        "txrdma.kit.promql.MOST_SERIES",
        "The answer is refused.",
        "unit.kit.test_promql.MatrixTests.test_wrong",
    ),
    Limit(
        "monitor",
        "queries of an engine for one request",
        "txrdma.monitor.series.promqlreader.MOST_QUERIES",
        "The request is refused.",
        "unit.monitor.test_promql_reader.ReaderTests.test_tooLong",
    ),
    Limit(
        "monitor",
        "queries of an engine at a time",
        "txrdma.monitor.series.promqlreader.MOST_AT_ONCE",
        _WAITS,
        "unit.monitor.test_promql_reader.ReaderTests.test_crowd",
    ),
    Limit(
        "monitor",
        "seconds for which an engine can make the monitor wait",
        "txrdma.kit.remotesender.LONGEST_RETRY_AFTER",
        "Samples are sent again.",
        "unit.kit.test_remotesender.SenderTests.test_retryAfter",
    ),
    Limit(
        "monitor",
        "states of one kind that are read from the history at a restart",
        "txrdma.monitor.series.eventtable.MOST_STATES",
        _OLDEST,
        "support.monitor.storecontract.StoreContract.test_events",
    ),
    Limit(
        "monitor",
        "events that wait for the disk",
        "txrdma.monitor.series.history.MOST_EVENTS",
        _OLDEST,
        "unit.monitor.test_history.WriterTests.test_manyEvents",
    ),
    Limit(
        "monitor",
        "logged wrong passwords in a period",
        "txrdma.kit.webaccess.MOST_LOGGED",
        "Further ones are not logged.",
        "unit.monitor.test_access.AccessTests.test_manyGuessers",
    ),
    # shared memory and UNIX sockets
    Limit(
        "shared memory",
        "doorbells of a peer",
        "txrdma.soft.shared._doorbells.MOST",
        "The peer's connections are closed.",
        "integration.soft.test_rendezvous.StrangerTests.test_manyDoorbells",
    ),
    Limit(
        "shared memory",
        "invitations of a peer that meet no queue pair",
        "txrdma.soft.shared.routes._MOST_WAITING",
        "The peer's connections are closed.",
        "integration.soft.test_rendezvous.StrangerTests.test_manyInvitations",
    ),
    Limit(
        "shared memory",
        "regions of a peer that a queue pair has mapped",
        "txrdma.soft.shared.sharedqueuepair.MOST_REGIONS",
        "The one that was mapped first is unmapped; its next use maps it again.",
        "integration.soft.test_sharedmemory.RegionTests.test_manyRegions",
    ),
    Limit(
        "UNIX sockets",
        "bytes that a process leaves unread",
        "txrdma.unix.lines.MOST_UNREAD",
        "Its connection is closed.",
        "unit.unix.test_lines.SendingTests.test_noReader",
    ),
    Limit(
        "log",
        "subjects of a repeated message in a minute",
        "txrdma.kit.logs._MOST",
        "All others count as one subject.",
        "unit.kit.test_logs.SeldomTests.test_bounded",
    ),
)
"""All limits, grouped by C{part}."""
