"""
Names of structures and fields in python-rdma, and differences of their positions.

C{docs/from-python-rdma.md} documents the structures.
"""

from __future__ import annotations

from typing import Final


def _pairs(text: str) -> list[tuple[str, str]]:
    return [(left, right) for left, _, right in (pair.partition("=") for pair in text.split())]


STRUCTURES: Final = dict(
    _pairs("""
HdrLRH=LRH HdrRWH=RWH HdrGRH=GRH HdrBTH=BTH HdrRDETH=RDETH HdrDETH=DETH HdrRETH=RETH
HdrAtomicETH=AtomicETH HdrAETH=AETH HdrAtomicAckETH=AtomicAckETH HdrImmDt=ImmDt HdrIETH=IETH
HdrFlowControl=FlowControl MADHeader=MADHeader MADHeaderDirected=MADHeaderDirected
MADClassPortInfo=ClassPortInfo MADInformInfo=InformInfo RMPPHeader=RMPPHeader
RMPPShortHeader=RMPPShortHeader RMPPData=RMPPData RMPPAck=RMPPAck RMPPAbort=RMPPAbort RMPPStop=RMPPStop
SMPLIDPortBlock=LIDPort SMPFormat=SMPFormat SMPFormatDirected=SMPFormatDirected
SMPNodeDescription=NodeDescription SMPNodeInfo=NodeInfo SMPSwitchInfo=SwitchInfo SMPGUIDInfo=GUIDInfo
SMPPortInfo=PortInfo SMPPKeyTable=PKeyTable SMPSLToVLMappingTable=SLtoVLMappingTable
SMPVLArbitrationTable=VLArbitrationTable SMPLinearForwardingTable=LinearForwardingTable
SMPRandomForwardingTable=RandomForwardingTable SMPMulticastForwardingTable=MulticastForwardingTable
SMPSMInfo=SMInfo SMPVendorDiag=VendorDiag SMPLedInfo=LedInfo SMPNoticeTrap=Notice
MADNoticeTrap64=GIDDetails MADNoticeTrap128=LinkDetails MADNoticeTrap129=PortDetails
MADNoticeTrap144=LocalChangeDetails MADNoticeTrap145=SystemImageDetails MADNoticeTrap256=BadMKeyDetails
MADNoticeTrap257=BadKeyDetails MADNoticeTrap259=SwitchPKeyDetails SAHeader=SAHeader SAFormat=SAFormat
SANodeRecord=NodeRecord SAPortInfoRecord=PortInfoRecord
SASLToVLMappingTableRecord=SLtoVLMappingTableRecord SASwitchInfoRecord=SwitchInfoRecord
SALinearForwardingTableRecord=LinearForwardingTableRecord
SARandomForwardingTableRecord=RandomForwardingTableRecord
SAMulticastForwardingTableRecord=MulticastForwardingTableRecord
SAVLArbitrationTableRecord=VLArbitrationTableRecord SASMInfoRecord=SMInfoRecord
SAInformInfoRecord=InformInfoRecord SALinkRecord=LinkRecord SAGUIDInfoRecord=GUIDInfoRecord
SAServiceRecord=ServiceRecord SAPKeyTableRecord=PKeyTableRecord SAPathRecord=PathRecord
SAMCMemberRecord=MCMemberRecord SATraceRecord=TraceRecord SAMultiPathRecord=MultiPathRecord
SAServiceAssociationRecord=ServiceAssociationRecord PMFormat=PerformanceFormat
PMPortSamplesCtl=PortSamplesControl PMPortSamplesRes=PortSamplesResult PMPortCounters=PortCounters
PMPortRcvErrorDetails=PortRcvErrorDetails PMPortXmitDiscardDetails=PortXmitDiscardDetails
PMPortOpRcvCounters=PortOpRcvCounters PMPortFlowCtlCounters=PortFlowCtlCounters
PMPortVLOpPackets=PortVLOpPackets PMPortVLOpData=PortVLOpData
PMPortVLXmitFlowCtlUpdateErrors=PortVLXmitFlowCtlUpdateErrors
PMPortVLXmitWaitCounters=PortVLXmitWaitCounters PMSwPortVLCongestion=SwPortVLCongestion
PMPortSamplesResExt=PortSamplesResultExtended PMPortCountersExt=PortCountersExtended
PMPortXmitDataSL=PortXmitDataSL PMPortRcvDataSL=PortRcvDataSL CMFormat=CommMgtFormat CMPath=CMPath
CMREQ=REQ CMMRA=MRA CMREJ=REJ CMREP=REP CMRTU=RTU CMDREQ=DREQ CMDREP=DREP CMLAP=LAP CMAPR=APR
CMSIDR_REQ=SIDRREQ CMSIDR_REP=SIDRREP DMFormat=DevMgtFormat DMServiceEntry=ServiceEntry
DMIOUnitInfo=IOUnitInfo DMIOControllerProfile=IOControllerProfile DMServiceEntries=ServiceEntries
DMDiagnosticTimeout=DiagnosticTimeout DMPrepareToTest=PrepareToTest DMTestDeviceOnce=TestDeviceOnce
DMTestDeviceLoop=TestDeviceLoop DMDiagCode=DiagCode SNMPFormat=SNMPFormat SNMPCommunityInfo=CommunityInfo
SNMPPDUInfo=PDUInfo VendFormat=PlainFormat VendOUIFormat=VendorOUIFormat MlxGeneralInfo=MlxGeneralInfo
OFASysStatPing=OpenIBSystemPing OFASysStatHostInfo=OpenIBHostInfo OFASysStatCPUInfo=OpenIBCPUInfo
""")
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
