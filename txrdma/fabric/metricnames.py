"""Names of the counters of ports as metrics, without C{infiniband_} and C{_total}: those of node_exporter."""

from __future__ import annotations

from typing import Final

from txrdma.fabric.errorcorrection import CORRECTED, SYMBOLS
from txrdma.fabric.errorcounters import UNCORRECTABLE

FAMILIES: Final = {
    "portXmitData": ("port_data_transmitted_bytes", "Octets of data sent on all virtual lanes"),
    "portRcvData": ("port_data_received_bytes", "Octets of data received on all virtual lanes"),
    "portXmitPkts": ("port_packets_transmitted", "Packets sent on all virtual lanes"),
    "portRcvPkts": ("port_packets_received", "Packets received on all virtual lanes"),
    "portUnicastXmitPkts": ("unicast_packets_transmitted", "Unicast packets sent, with errors, too"),
    "portUnicastRcvPkts": ("unicast_packets_received", "Unicast packets received, with errors, too"),
    "portMulticastXmitPkts": ("multicast_packets_transmitted", "Multicast packets sent, with errors, too"),
    "portMulticastRcvPkts": ("multicast_packets_received", "Multicast packets received, with errors, too"),
    "symbolErrorCounter": ("symbol_error", "Minor link errors on one or more lanes"),
    "linkErrorRecoveryCounter": ("link_error_recovery", "Recoveries of the link from an error"),
    "linkDownedCounter": ("link_downed", "Recoveries from an error that failed, so that the link went down"),
    "portRcvErrors": ("port_errors_received", "Packets received with an error"),
    "portRcvRemotePhysicalErrors": (
        "port_receive_remote_physical_errors",
        "Packets received that were marked as bad further away",
    ),
    "portRcvSwitchRelayErrors": (
        "port_receive_switch_relay_errors",
        "Packets received that the switch could not forward",
    ),
    "portXmitDiscards": ("port_discards_transmitted", "Packets discarded as the port was down or congested"),
    "portXmitConstraintErrors": (
        "port_constraint_errors_transmitted",
        "Packets not sent by the switch's filters",
    ),
    "portRcvConstraintErrors": (
        "port_constraint_errors_received",
        "Packets received and discarded by the switch's filters",
    ),
    "localLinkIntegrityErrors": ("local_link_integrity_errors", "Local link errors beyond the threshold"),
    "excessiveBufferOverrunErrors": ("excessive_buffer_overrun_errors", "Overruns of buffers in succession"),
    "vl15Dropped": ("vl15_dropped", "Management datagrams dropped for lack of buffers"),
    "qp1Dropped": ("qp1_dropped", "General management datagrams dropped for lack of buffers"),
    "portXmitWait": ("port_transmit_wait", "Ticks with data to send and no credits for it"),
}
"""Names of families without C{infiniband_} and C{_total}, and help text, by the name of the counter."""

LANE_FAMILIES: Final = {
    "fecCorrectableSymbolCtrLanes": (
        "port_fec_lane_corrected_symbols",
        "Symbols of one lane that were corrected",
    ),
    "fecCorrectableBlockCounterLanes": (
        "port_fec_lane_corrected_blocks",
        "Blocks of one lane that were corrected",
    ),
    "fecUncorrectableBlockCounterLanes": (
        "port_fec_lane_uncorrectable_blocks",
        "Blocks of one lane that were beyond correction",
    ),
    "errorDetectionCounterLanes": (
        "port_fec_lane_detected_errors",
        "Errors of one lane that were detected by its code",
    ),
}
"""Metric name and help text of each counter of single lanes, by the name of its field."""

CORRECTION_FAMILIES: Final = {
    UNCORRECTABLE: ("port_fec_uncorrectable_blocks", "Blocks beyond correction, whose packets are lost"),
    CORRECTED: ("port_fec_corrected_blocks", "Blocks with wrong symbols that were corrected"),
    SYMBOLS: ("port_fec_corrected_symbols", "Symbols that were corrected; from HDR on there are always some"),
    "syncHeaderErrorCounter": ("port_sync_header_errors", "Wrong headers of blocks on all lanes"),
    "unknownBlockCounter": ("port_unknown_blocks", "Blocks of an unknown type on all lanes"),
    **LANE_FAMILIES,
}
"""
Names of families of counters of error correction, by their names: fields of lanes have one for all of these.
"""

METRICS: Final = (*FAMILIES, *CORRECTION_FAMILIES)
"""Names of all counters that can be exported to Prometheus."""

CAUSE_FAMILIES: Final = {
    "portLocalPhysicalErrors": "port_local_physical_errors",
    "portMalformedPacketErrors": "port_malformed_packet_errors",
    "portBufferOverrunErrors": "port_buffer_overrun_errors",
    "portDLIDMappingErrors": "port_dlid_mapping_errors",
    "portVLMappingErrors": "port_vl_mapping_errors",
    "portLoopingErrors": "port_looping_errors",
    "portInactiveDiscards": "port_inactive_discards",
    "portNeighborMTUDiscards": "port_neighbor_mtu_discards",
    "portSwLifetimeLimitDiscards": "port_switch_lifetime_limit_discards",
    "portSwHOQLifetimeLimitDiscards": "port_switch_hoq_lifetime_limit_discards",
}
"""Names of families of causes, by the names of the optional counters."""
