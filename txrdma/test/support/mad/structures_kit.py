"""
Fields that mean the same under the name of another program, which shares no word with ours.
"""

from __future__ import annotations

from typing import Final

_SYNONYMS: Final = frozenset(
    {
        "CongMgtFormat.payload is mgt_data",
        "IOControllerProfile.controllerServicesMask is svc_cap_mask",
        "MultiPathRecord.serviceIDLower is service_id_56lsb",
        "MultiPathRecord.serviceIDUpper is service_id_8msb",
        "SIDRREQ.pkey is PARTITION_KEY",
        "ServiceRecord.data8 is service_data8",
    }
)
