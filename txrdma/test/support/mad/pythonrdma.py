"""
Names of structures and fields in python-rdma, and differences of their positions.

The structures are those of C{docs/from-python-rdma.md}.
"""

from __future__ import annotations

import re
from typing import Final

from txrdma.test.support import CHECKOUT


def _pairs(text: str) -> list[tuple[str, str]]:
    return [(left, right) for left, _, right in (pair.partition("=") for pair in text.split())]


STRUCTURES: Final = dict(
    re.findall(
        r"^\| `(\w+)` \| `[\w.]+\.(\w+)` \|$", (CHECKOUT / "docs" / "from-python-rdma.md").read_text(), re.M
    )
)
"""python-rdma's and txrdma's names of structures."""

FIELDS: Final = frozenset(
    _pairs("""
counterMask10To14=counterMask10 counterMask10To14=counterMask11 counterMask10To14=counterMask12
counterMask10To14=counterMask13 counterMask10To14=counterMask14 gid1=gidAddr1 gid2=gidAddr2 lid1=lidAddr1
lid2=lidAddr2 opcode=service opcode=function
acknowledge=ackReq additionalInfo=ARI address=VA alternateFlowLabel=altFlowLabel
alternateHopLimit=altHopLimit alternateLocalACKTimeout=altLocalACKTimeout alternateLocalGID=altSGID
alternateLocalLID=altSLID alternatePacketRate=altIPD alternateRemoteGID=altDGID alternateRemoteLID=altDLID
alternateServiceLevel=altSL alternateSubnetLocal=altSubnetLocal alternateTrafficClass=altTClass
compare=cmpData content=data content=data_str creditLimit=FCCL data16=serviceData16 data32=serviceData32
data64=serviceData64 destination=destQP fwINIFileVersion=fw_init_file_version hopLimit=hopLmt
length=DMALen linkNextHeader=LNH linkVersion=LVer localCAGUID=LGUID
localCMResponseTimeout=localResponseTimeout localCommID=LCID localEECN=localEEContext localGID=SGID
localLID=SLID managementClass=mgmtClass migration=migReq nextHeader=nxtHdr original=origRData
packetRate=PD pathMTU=pathPacketMTU payload=data payloadLength=payLen
portSwHOQLifetimeLimitDiscards=portSwHOQLimitDiscards ports=portBlock producerType=nodeType
remoteCMResponseTimeout=RCMTimeout remoteCMResponseTimeout=remoteResponseTimeout remoteCommID=RCID
remoteGID=DGID remoteLID=DLID remoteQPN=RQPN returning=D solicited=SE source=srcQP swMajor=hw_major
swMinor=hw_minor swSubMinor=hw_sub_minor totalBlocksSent=FCTBS version=IPVer version=TVer virtualLane=VL
""")
)
"""txrdma's and python-rdma's names of fields."""

LATER: Final = {"RMPPHeader": 192, "RMPPShortHeader": 192}
"""Offset in bits of structures that begin with the common header in python-rdma."""
