BEGIN TRANSACTION;
CREATE TABLE done (
	level TEXT NOT NULL, 
	until BIGINT, 
	PRIMARY KEY (level)
);
INSERT INTO "done" VALUES('minutes',5340);
INSERT INTO "done" VALUES('fec_minutes',5340);
INSERT INTO "done" VALUES('hours',3600);
INSERT INTO "done" VALUES('fec_hours',3600);
CREATE TABLE fec_hours_0 (
	port BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	seconds DOUBLE, 
	"portFECUncorrectableBlockCtr" BIGINT, 
	"portFECCorrectableBlockCtr" BIGINT, 
	"portFECCorrectedSymbolCtr" BIGINT, 
	PRIMARY KEY (port, at)
);
INSERT INTO "fec_hours_0" VALUES(1,0,720.0,0,24,NULL);
CREATE TABLE fec_minutes_0 (
	port BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	seconds DOUBLE, 
	"portFECUncorrectableBlockCtr" BIGINT, 
	"portFECCorrectableBlockCtr" BIGINT, 
	"portFECCorrectedSymbolCtr" BIGINT, 
	PRIMARY KEY (port, at)
);
INSERT INTO "fec_minutes_0" VALUES(1,0,60.0,0,2,NULL);
INSERT INTO "fec_minutes_0" VALUES(1,300,60.0,0,2,NULL);
INSERT INTO "fec_minutes_0" VALUES(1,600,60.0,0,2,NULL);
INSERT INTO "fec_minutes_0" VALUES(1,900,60.0,0,2,NULL);
INSERT INTO "fec_minutes_0" VALUES(1,1200,60.0,0,2,NULL);
INSERT INTO "fec_minutes_0" VALUES(1,1500,60.0,0,2,NULL);
INSERT INTO "fec_minutes_0" VALUES(1,1800,60.0,0,2,NULL);
INSERT INTO "fec_minutes_0" VALUES(1,2100,60.0,0,2,NULL);
INSERT INTO "fec_minutes_0" VALUES(1,2400,60.0,0,2,NULL);
INSERT INTO "fec_minutes_0" VALUES(1,2700,60.0,0,2,NULL);
INSERT INTO "fec_minutes_0" VALUES(1,3000,60.0,0,2,NULL);
INSERT INTO "fec_minutes_0" VALUES(1,3300,60.0,0,2,NULL);
INSERT INTO "fec_minutes_0" VALUES(1,3600,60.0,0,2,NULL);
INSERT INTO "fec_minutes_0" VALUES(1,3900,60.0,0,2,NULL);
INSERT INTO "fec_minutes_0" VALUES(1,4200,60.0,0,2,NULL);
INSERT INTO "fec_minutes_0" VALUES(1,4500,60.0,0,2,NULL);
INSERT INTO "fec_minutes_0" VALUES(1,4800,60.0,0,2,NULL);
INSERT INTO "fec_minutes_0" VALUES(1,5100,60.0,0,2,NULL);
CREATE TABLE fec_readings_0 (
	port BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	seconds DOUBLE, 
	"portFECUncorrectableBlockCtr" BIGINT, 
	"portFECCorrectableBlockCtr" BIGINT, 
	"portFECCorrectedSymbolCtr" BIGINT, 
	PRIMARY KEY (port, at)
);
INSERT INTO "fec_readings_0" VALUES(1,30,60.0,0,2,NULL);
INSERT INTO "fec_readings_0" VALUES(1,330,60.0,0,2,NULL);
CREATE TABLE fec_readings_1 (
	port BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	seconds DOUBLE, 
	"portFECUncorrectableBlockCtr" BIGINT, 
	"portFECCorrectableBlockCtr" BIGINT, 
	"portFECCorrectedSymbolCtr" BIGINT, 
	PRIMARY KEY (port, at)
);
INSERT INTO "fec_readings_1" VALUES(1,630,60.0,0,2,NULL);
INSERT INTO "fec_readings_1" VALUES(1,930,60.0,0,2,NULL);
CREATE TABLE fec_readings_2 (
	port BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	seconds DOUBLE, 
	"portFECUncorrectableBlockCtr" BIGINT, 
	"portFECCorrectableBlockCtr" BIGINT, 
	"portFECCorrectedSymbolCtr" BIGINT, 
	PRIMARY KEY (port, at)
);
INSERT INTO "fec_readings_2" VALUES(1,1230,60.0,0,2,NULL);
INSERT INTO "fec_readings_2" VALUES(1,1530,60.0,0,2,NULL);
CREATE TABLE fec_readings_3 (
	port BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	seconds DOUBLE, 
	"portFECUncorrectableBlockCtr" BIGINT, 
	"portFECCorrectableBlockCtr" BIGINT, 
	"portFECCorrectedSymbolCtr" BIGINT, 
	PRIMARY KEY (port, at)
);
INSERT INTO "fec_readings_3" VALUES(1,1830,60.0,0,2,NULL);
INSERT INTO "fec_readings_3" VALUES(1,2130,60.0,0,2,NULL);
CREATE TABLE fec_readings_4 (
	port BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	seconds DOUBLE, 
	"portFECUncorrectableBlockCtr" BIGINT, 
	"portFECCorrectableBlockCtr" BIGINT, 
	"portFECCorrectedSymbolCtr" BIGINT, 
	PRIMARY KEY (port, at)
);
INSERT INTO "fec_readings_4" VALUES(1,2430,60.0,0,2,NULL);
INSERT INTO "fec_readings_4" VALUES(1,2730,60.0,0,2,NULL);
CREATE TABLE fec_readings_5 (
	port BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	seconds DOUBLE, 
	"portFECUncorrectableBlockCtr" BIGINT, 
	"portFECCorrectableBlockCtr" BIGINT, 
	"portFECCorrectedSymbolCtr" BIGINT, 
	PRIMARY KEY (port, at)
);
INSERT INTO "fec_readings_5" VALUES(1,3030,60.0,0,2,NULL);
INSERT INTO "fec_readings_5" VALUES(1,3330,60.0,0,2,NULL);
CREATE TABLE fec_readings_6 (
	port BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	seconds DOUBLE, 
	"portFECUncorrectableBlockCtr" BIGINT, 
	"portFECCorrectableBlockCtr" BIGINT, 
	"portFECCorrectedSymbolCtr" BIGINT, 
	PRIMARY KEY (port, at)
);
INSERT INTO "fec_readings_6" VALUES(1,3630,60.0,0,2,NULL);
INSERT INTO "fec_readings_6" VALUES(1,3930,60.0,0,2,NULL);
CREATE TABLE fec_readings_7 (
	port BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	seconds DOUBLE, 
	"portFECUncorrectableBlockCtr" BIGINT, 
	"portFECCorrectableBlockCtr" BIGINT, 
	"portFECCorrectedSymbolCtr" BIGINT, 
	PRIMARY KEY (port, at)
);
INSERT INTO "fec_readings_7" VALUES(1,4230,60.0,0,2,NULL);
INSERT INTO "fec_readings_7" VALUES(1,4530,60.0,0,2,NULL);
CREATE TABLE fec_readings_8 (
	port BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	seconds DOUBLE, 
	"portFECUncorrectableBlockCtr" BIGINT, 
	"portFECCorrectableBlockCtr" BIGINT, 
	"portFECCorrectedSymbolCtr" BIGINT, 
	PRIMARY KEY (port, at)
);
INSERT INTO "fec_readings_8" VALUES(1,4830,60.0,0,2,NULL);
INSERT INTO "fec_readings_8" VALUES(1,5130,60.0,0,2,NULL);
CREATE TABLE history_version (
	version BIGINT NOT NULL, 
	PRIMARY KEY (version)
);
INSERT INTO "history_version" VALUES(1);
CREATE TABLE hours_0 (
	port BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	seconds DOUBLE, 
	"portXmitData" BIGINT, 
	"portRcvData" BIGINT, 
	"portXmitPkts" BIGINT, 
	"portRcvPkts" BIGINT, 
	"portUnicastXmitPkts" BIGINT, 
	"portUnicastRcvPkts" BIGINT, 
	"portMulticastXmitPkts" BIGINT, 
	"portMulticastRcvPkts" BIGINT, 
	"symbolErrorCounter" BIGINT, 
	"linkErrorRecoveryCounter" BIGINT, 
	"linkDownedCounter" BIGINT, 
	"portRcvErrors" BIGINT, 
	"portRcvRemotePhysicalErrors" BIGINT, 
	"portRcvSwitchRelayErrors" BIGINT, 
	"portXmitDiscards" BIGINT, 
	"portXmitConstraintErrors" BIGINT, 
	"portRcvConstraintErrors" BIGINT, 
	"localLinkIntegrityErrors" BIGINT, 
	"excessiveBufferOverrunErrors" BIGINT, 
	"vl15Dropped" BIGINT, 
	"qp1Dropped" BIGINT, 
	"portXmitWait" BIGINT, 
	"peakXmit" DOUBLE, 
	"peakRcv" DOUBLE, 
	PRIMARY KEY (port, at)
);
INSERT INTO "hours_0" VALUES(1,0,36.0,756,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "hours_0" VALUES(2,0,12.0,84,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
CREATE TABLE minutes_0 (
	port BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	seconds DOUBLE, 
	"portXmitData" BIGINT, 
	"portRcvData" BIGINT, 
	"portXmitPkts" BIGINT, 
	"portRcvPkts" BIGINT, 
	"portUnicastXmitPkts" BIGINT, 
	"portUnicastRcvPkts" BIGINT, 
	"portMulticastXmitPkts" BIGINT, 
	"portMulticastRcvPkts" BIGINT, 
	"symbolErrorCounter" BIGINT, 
	"linkErrorRecoveryCounter" BIGINT, 
	"linkDownedCounter" BIGINT, 
	"portRcvErrors" BIGINT, 
	"portRcvRemotePhysicalErrors" BIGINT, 
	"portRcvSwitchRelayErrors" BIGINT, 
	"portXmitDiscards" BIGINT, 
	"portXmitConstraintErrors" BIGINT, 
	"portRcvConstraintErrors" BIGINT, 
	"localLinkIntegrityErrors" BIGINT, 
	"excessiveBufferOverrunErrors" BIGINT, 
	"vl15Dropped" BIGINT, 
	"qp1Dropped" BIGINT, 
	"portXmitWait" BIGINT, 
	"peakXmit" DOUBLE, 
	"peakRcv" DOUBLE, 
	PRIMARY KEY (port, at)
);
INSERT INTO "minutes_0" VALUES(1,0,3.0,63,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "minutes_0" VALUES(2,0,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
INSERT INTO "minutes_0" VALUES(1,300,3.0,63,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "minutes_0" VALUES(2,300,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
INSERT INTO "minutes_0" VALUES(1,600,3.0,63,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "minutes_0" VALUES(2,600,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
INSERT INTO "minutes_0" VALUES(1,900,3.0,63,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "minutes_0" VALUES(2,900,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
INSERT INTO "minutes_0" VALUES(1,1200,3.0,63,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "minutes_0" VALUES(2,1200,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
INSERT INTO "minutes_0" VALUES(1,1500,3.0,63,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "minutes_0" VALUES(2,1500,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
INSERT INTO "minutes_0" VALUES(1,1800,3.0,63,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "minutes_0" VALUES(2,1800,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
INSERT INTO "minutes_0" VALUES(1,2100,3.0,63,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "minutes_0" VALUES(2,2100,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
INSERT INTO "minutes_0" VALUES(1,2400,3.0,63,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "minutes_0" VALUES(2,2400,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
INSERT INTO "minutes_0" VALUES(1,2700,3.0,63,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "minutes_0" VALUES(2,2700,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
INSERT INTO "minutes_0" VALUES(1,3000,3.0,63,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "minutes_0" VALUES(2,3000,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
INSERT INTO "minutes_0" VALUES(1,3300,3.0,63,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "minutes_0" VALUES(2,3300,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
INSERT INTO "minutes_0" VALUES(1,3600,3.0,63,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "minutes_0" VALUES(2,3600,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
INSERT INTO "minutes_0" VALUES(1,3900,3.0,63,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "minutes_0" VALUES(2,3900,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
INSERT INTO "minutes_0" VALUES(1,4200,3.0,63,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "minutes_0" VALUES(2,4200,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
INSERT INTO "minutes_0" VALUES(1,4500,3.0,63,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "minutes_0" VALUES(2,4500,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
INSERT INTO "minutes_0" VALUES(1,4800,3.0,63,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "minutes_0" VALUES(2,4800,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
INSERT INTO "minutes_0" VALUES(1,5100,3.0,63,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "minutes_0" VALUES(2,5100,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
CREATE TABLE ports (
	id BIGINT NOT NULL, 
	guid BLOB, 
	number BIGINT, 
	PRIMARY KEY (id)
);
INSERT INTO "ports" VALUES(1,X'0000000000000001',3);
INSERT INTO "ports" VALUES(2,X'0000000000000001',4);
CREATE TABLE readings_0 (
	port BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	seconds DOUBLE, 
	"portXmitData" BIGINT, 
	"portRcvData" BIGINT, 
	"portXmitPkts" BIGINT, 
	"portRcvPkts" BIGINT, 
	"portUnicastXmitPkts" BIGINT, 
	"portUnicastRcvPkts" BIGINT, 
	"portMulticastXmitPkts" BIGINT, 
	"portMulticastRcvPkts" BIGINT, 
	"symbolErrorCounter" BIGINT, 
	"linkErrorRecoveryCounter" BIGINT, 
	"linkDownedCounter" BIGINT, 
	"portRcvErrors" BIGINT, 
	"portRcvRemotePhysicalErrors" BIGINT, 
	"portRcvSwitchRelayErrors" BIGINT, 
	"portXmitDiscards" BIGINT, 
	"portXmitConstraintErrors" BIGINT, 
	"portRcvConstraintErrors" BIGINT, 
	"localLinkIntegrityErrors" BIGINT, 
	"excessiveBufferOverrunErrors" BIGINT, 
	"vl15Dropped" BIGINT, 
	"qp1Dropped" BIGINT, 
	"portXmitWait" BIGINT, 
	"peakXmit" DOUBLE, 
	"peakRcv" DOUBLE, 
	PRIMARY KEY (port, at)
);
INSERT INTO "readings_0" VALUES(1,0,1.0,1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1.0,0.0);
INSERT INTO "readings_0" VALUES(1,20,1.0,21,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,21.0,0.0);
INSERT INTO "readings_0" VALUES(1,40,1.0,41,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "readings_0" VALUES(2,5,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
INSERT INTO "readings_0" VALUES(1,300,1.0,1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1.0,0.0);
INSERT INTO "readings_0" VALUES(1,320,1.0,21,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,21.0,0.0);
INSERT INTO "readings_0" VALUES(1,340,1.0,41,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "readings_0" VALUES(2,305,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
CREATE TABLE readings_1 (
	port BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	seconds DOUBLE, 
	"portXmitData" BIGINT, 
	"portRcvData" BIGINT, 
	"portXmitPkts" BIGINT, 
	"portRcvPkts" BIGINT, 
	"portUnicastXmitPkts" BIGINT, 
	"portUnicastRcvPkts" BIGINT, 
	"portMulticastXmitPkts" BIGINT, 
	"portMulticastRcvPkts" BIGINT, 
	"symbolErrorCounter" BIGINT, 
	"linkErrorRecoveryCounter" BIGINT, 
	"linkDownedCounter" BIGINT, 
	"portRcvErrors" BIGINT, 
	"portRcvRemotePhysicalErrors" BIGINT, 
	"portRcvSwitchRelayErrors" BIGINT, 
	"portXmitDiscards" BIGINT, 
	"portXmitConstraintErrors" BIGINT, 
	"portRcvConstraintErrors" BIGINT, 
	"localLinkIntegrityErrors" BIGINT, 
	"excessiveBufferOverrunErrors" BIGINT, 
	"vl15Dropped" BIGINT, 
	"qp1Dropped" BIGINT, 
	"portXmitWait" BIGINT, 
	"peakXmit" DOUBLE, 
	"peakRcv" DOUBLE, 
	PRIMARY KEY (port, at)
);
INSERT INTO "readings_1" VALUES(1,600,1.0,1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1.0,0.0);
INSERT INTO "readings_1" VALUES(1,620,1.0,21,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,21.0,0.0);
INSERT INTO "readings_1" VALUES(1,640,1.0,41,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "readings_1" VALUES(2,605,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
INSERT INTO "readings_1" VALUES(1,900,1.0,1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1.0,0.0);
INSERT INTO "readings_1" VALUES(1,920,1.0,21,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,21.0,0.0);
INSERT INTO "readings_1" VALUES(1,940,1.0,41,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "readings_1" VALUES(2,905,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
CREATE TABLE readings_2 (
	port BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	seconds DOUBLE, 
	"portXmitData" BIGINT, 
	"portRcvData" BIGINT, 
	"portXmitPkts" BIGINT, 
	"portRcvPkts" BIGINT, 
	"portUnicastXmitPkts" BIGINT, 
	"portUnicastRcvPkts" BIGINT, 
	"portMulticastXmitPkts" BIGINT, 
	"portMulticastRcvPkts" BIGINT, 
	"symbolErrorCounter" BIGINT, 
	"linkErrorRecoveryCounter" BIGINT, 
	"linkDownedCounter" BIGINT, 
	"portRcvErrors" BIGINT, 
	"portRcvRemotePhysicalErrors" BIGINT, 
	"portRcvSwitchRelayErrors" BIGINT, 
	"portXmitDiscards" BIGINT, 
	"portXmitConstraintErrors" BIGINT, 
	"portRcvConstraintErrors" BIGINT, 
	"localLinkIntegrityErrors" BIGINT, 
	"excessiveBufferOverrunErrors" BIGINT, 
	"vl15Dropped" BIGINT, 
	"qp1Dropped" BIGINT, 
	"portXmitWait" BIGINT, 
	"peakXmit" DOUBLE, 
	"peakRcv" DOUBLE, 
	PRIMARY KEY (port, at)
);
INSERT INTO "readings_2" VALUES(1,1200,1.0,1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1.0,0.0);
INSERT INTO "readings_2" VALUES(1,1220,1.0,21,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,21.0,0.0);
INSERT INTO "readings_2" VALUES(1,1240,1.0,41,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "readings_2" VALUES(2,1205,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
INSERT INTO "readings_2" VALUES(1,1500,1.0,1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1.0,0.0);
INSERT INTO "readings_2" VALUES(1,1520,1.0,21,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,21.0,0.0);
INSERT INTO "readings_2" VALUES(1,1540,1.0,41,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "readings_2" VALUES(2,1505,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
CREATE TABLE readings_3 (
	port BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	seconds DOUBLE, 
	"portXmitData" BIGINT, 
	"portRcvData" BIGINT, 
	"portXmitPkts" BIGINT, 
	"portRcvPkts" BIGINT, 
	"portUnicastXmitPkts" BIGINT, 
	"portUnicastRcvPkts" BIGINT, 
	"portMulticastXmitPkts" BIGINT, 
	"portMulticastRcvPkts" BIGINT, 
	"symbolErrorCounter" BIGINT, 
	"linkErrorRecoveryCounter" BIGINT, 
	"linkDownedCounter" BIGINT, 
	"portRcvErrors" BIGINT, 
	"portRcvRemotePhysicalErrors" BIGINT, 
	"portRcvSwitchRelayErrors" BIGINT, 
	"portXmitDiscards" BIGINT, 
	"portXmitConstraintErrors" BIGINT, 
	"portRcvConstraintErrors" BIGINT, 
	"localLinkIntegrityErrors" BIGINT, 
	"excessiveBufferOverrunErrors" BIGINT, 
	"vl15Dropped" BIGINT, 
	"qp1Dropped" BIGINT, 
	"portXmitWait" BIGINT, 
	"peakXmit" DOUBLE, 
	"peakRcv" DOUBLE, 
	PRIMARY KEY (port, at)
);
INSERT INTO "readings_3" VALUES(1,1800,1.0,1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1.0,0.0);
INSERT INTO "readings_3" VALUES(1,1820,1.0,21,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,21.0,0.0);
INSERT INTO "readings_3" VALUES(1,1840,1.0,41,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "readings_3" VALUES(2,1805,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
INSERT INTO "readings_3" VALUES(1,2100,1.0,1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1.0,0.0);
INSERT INTO "readings_3" VALUES(1,2120,1.0,21,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,21.0,0.0);
INSERT INTO "readings_3" VALUES(1,2140,1.0,41,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "readings_3" VALUES(2,2105,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
CREATE TABLE readings_4 (
	port BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	seconds DOUBLE, 
	"portXmitData" BIGINT, 
	"portRcvData" BIGINT, 
	"portXmitPkts" BIGINT, 
	"portRcvPkts" BIGINT, 
	"portUnicastXmitPkts" BIGINT, 
	"portUnicastRcvPkts" BIGINT, 
	"portMulticastXmitPkts" BIGINT, 
	"portMulticastRcvPkts" BIGINT, 
	"symbolErrorCounter" BIGINT, 
	"linkErrorRecoveryCounter" BIGINT, 
	"linkDownedCounter" BIGINT, 
	"portRcvErrors" BIGINT, 
	"portRcvRemotePhysicalErrors" BIGINT, 
	"portRcvSwitchRelayErrors" BIGINT, 
	"portXmitDiscards" BIGINT, 
	"portXmitConstraintErrors" BIGINT, 
	"portRcvConstraintErrors" BIGINT, 
	"localLinkIntegrityErrors" BIGINT, 
	"excessiveBufferOverrunErrors" BIGINT, 
	"vl15Dropped" BIGINT, 
	"qp1Dropped" BIGINT, 
	"portXmitWait" BIGINT, 
	"peakXmit" DOUBLE, 
	"peakRcv" DOUBLE, 
	PRIMARY KEY (port, at)
);
INSERT INTO "readings_4" VALUES(1,2400,1.0,1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1.0,0.0);
INSERT INTO "readings_4" VALUES(1,2420,1.0,21,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,21.0,0.0);
INSERT INTO "readings_4" VALUES(1,2440,1.0,41,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "readings_4" VALUES(2,2405,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
INSERT INTO "readings_4" VALUES(1,2700,1.0,1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1.0,0.0);
INSERT INTO "readings_4" VALUES(1,2720,1.0,21,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,21.0,0.0);
INSERT INTO "readings_4" VALUES(1,2740,1.0,41,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "readings_4" VALUES(2,2705,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
CREATE TABLE readings_5 (
	port BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	seconds DOUBLE, 
	"portXmitData" BIGINT, 
	"portRcvData" BIGINT, 
	"portXmitPkts" BIGINT, 
	"portRcvPkts" BIGINT, 
	"portUnicastXmitPkts" BIGINT, 
	"portUnicastRcvPkts" BIGINT, 
	"portMulticastXmitPkts" BIGINT, 
	"portMulticastRcvPkts" BIGINT, 
	"symbolErrorCounter" BIGINT, 
	"linkErrorRecoveryCounter" BIGINT, 
	"linkDownedCounter" BIGINT, 
	"portRcvErrors" BIGINT, 
	"portRcvRemotePhysicalErrors" BIGINT, 
	"portRcvSwitchRelayErrors" BIGINT, 
	"portXmitDiscards" BIGINT, 
	"portXmitConstraintErrors" BIGINT, 
	"portRcvConstraintErrors" BIGINT, 
	"localLinkIntegrityErrors" BIGINT, 
	"excessiveBufferOverrunErrors" BIGINT, 
	"vl15Dropped" BIGINT, 
	"qp1Dropped" BIGINT, 
	"portXmitWait" BIGINT, 
	"peakXmit" DOUBLE, 
	"peakRcv" DOUBLE, 
	PRIMARY KEY (port, at)
);
INSERT INTO "readings_5" VALUES(1,3000,1.0,1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1.0,0.0);
INSERT INTO "readings_5" VALUES(1,3020,1.0,21,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,21.0,0.0);
INSERT INTO "readings_5" VALUES(1,3040,1.0,41,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "readings_5" VALUES(2,3005,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
INSERT INTO "readings_5" VALUES(1,3300,1.0,1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1.0,0.0);
INSERT INTO "readings_5" VALUES(1,3320,1.0,21,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,21.0,0.0);
INSERT INTO "readings_5" VALUES(1,3340,1.0,41,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "readings_5" VALUES(2,3305,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
CREATE TABLE readings_6 (
	port BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	seconds DOUBLE, 
	"portXmitData" BIGINT, 
	"portRcvData" BIGINT, 
	"portXmitPkts" BIGINT, 
	"portRcvPkts" BIGINT, 
	"portUnicastXmitPkts" BIGINT, 
	"portUnicastRcvPkts" BIGINT, 
	"portMulticastXmitPkts" BIGINT, 
	"portMulticastRcvPkts" BIGINT, 
	"symbolErrorCounter" BIGINT, 
	"linkErrorRecoveryCounter" BIGINT, 
	"linkDownedCounter" BIGINT, 
	"portRcvErrors" BIGINT, 
	"portRcvRemotePhysicalErrors" BIGINT, 
	"portRcvSwitchRelayErrors" BIGINT, 
	"portXmitDiscards" BIGINT, 
	"portXmitConstraintErrors" BIGINT, 
	"portRcvConstraintErrors" BIGINT, 
	"localLinkIntegrityErrors" BIGINT, 
	"excessiveBufferOverrunErrors" BIGINT, 
	"vl15Dropped" BIGINT, 
	"qp1Dropped" BIGINT, 
	"portXmitWait" BIGINT, 
	"peakXmit" DOUBLE, 
	"peakRcv" DOUBLE, 
	PRIMARY KEY (port, at)
);
INSERT INTO "readings_6" VALUES(1,3600,1.0,1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1.0,0.0);
INSERT INTO "readings_6" VALUES(1,3620,1.0,21,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,21.0,0.0);
INSERT INTO "readings_6" VALUES(1,3640,1.0,41,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "readings_6" VALUES(2,3605,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
INSERT INTO "readings_6" VALUES(1,3900,1.0,1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1.0,0.0);
INSERT INTO "readings_6" VALUES(1,3920,1.0,21,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,21.0,0.0);
INSERT INTO "readings_6" VALUES(1,3940,1.0,41,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "readings_6" VALUES(2,3905,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
CREATE TABLE readings_7 (
	port BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	seconds DOUBLE, 
	"portXmitData" BIGINT, 
	"portRcvData" BIGINT, 
	"portXmitPkts" BIGINT, 
	"portRcvPkts" BIGINT, 
	"portUnicastXmitPkts" BIGINT, 
	"portUnicastRcvPkts" BIGINT, 
	"portMulticastXmitPkts" BIGINT, 
	"portMulticastRcvPkts" BIGINT, 
	"symbolErrorCounter" BIGINT, 
	"linkErrorRecoveryCounter" BIGINT, 
	"linkDownedCounter" BIGINT, 
	"portRcvErrors" BIGINT, 
	"portRcvRemotePhysicalErrors" BIGINT, 
	"portRcvSwitchRelayErrors" BIGINT, 
	"portXmitDiscards" BIGINT, 
	"portXmitConstraintErrors" BIGINT, 
	"portRcvConstraintErrors" BIGINT, 
	"localLinkIntegrityErrors" BIGINT, 
	"excessiveBufferOverrunErrors" BIGINT, 
	"vl15Dropped" BIGINT, 
	"qp1Dropped" BIGINT, 
	"portXmitWait" BIGINT, 
	"peakXmit" DOUBLE, 
	"peakRcv" DOUBLE, 
	PRIMARY KEY (port, at)
);
INSERT INTO "readings_7" VALUES(1,4200,1.0,1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1.0,0.0);
INSERT INTO "readings_7" VALUES(1,4220,1.0,21,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,21.0,0.0);
INSERT INTO "readings_7" VALUES(1,4240,1.0,41,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "readings_7" VALUES(2,4205,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
INSERT INTO "readings_7" VALUES(1,4500,1.0,1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1.0,0.0);
INSERT INTO "readings_7" VALUES(1,4520,1.0,21,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,21.0,0.0);
INSERT INTO "readings_7" VALUES(1,4540,1.0,41,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "readings_7" VALUES(2,4505,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
CREATE TABLE readings_8 (
	port BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	seconds DOUBLE, 
	"portXmitData" BIGINT, 
	"portRcvData" BIGINT, 
	"portXmitPkts" BIGINT, 
	"portRcvPkts" BIGINT, 
	"portUnicastXmitPkts" BIGINT, 
	"portUnicastRcvPkts" BIGINT, 
	"portMulticastXmitPkts" BIGINT, 
	"portMulticastRcvPkts" BIGINT, 
	"symbolErrorCounter" BIGINT, 
	"linkErrorRecoveryCounter" BIGINT, 
	"linkDownedCounter" BIGINT, 
	"portRcvErrors" BIGINT, 
	"portRcvRemotePhysicalErrors" BIGINT, 
	"portRcvSwitchRelayErrors" BIGINT, 
	"portXmitDiscards" BIGINT, 
	"portXmitConstraintErrors" BIGINT, 
	"portRcvConstraintErrors" BIGINT, 
	"localLinkIntegrityErrors" BIGINT, 
	"excessiveBufferOverrunErrors" BIGINT, 
	"vl15Dropped" BIGINT, 
	"qp1Dropped" BIGINT, 
	"portXmitWait" BIGINT, 
	"peakXmit" DOUBLE, 
	"peakRcv" DOUBLE, 
	PRIMARY KEY (port, at)
);
INSERT INTO "readings_8" VALUES(1,4800,1.0,1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1.0,0.0);
INSERT INTO "readings_8" VALUES(1,4820,1.0,21,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,21.0,0.0);
INSERT INTO "readings_8" VALUES(1,4840,1.0,41,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "readings_8" VALUES(2,4805,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
INSERT INTO "readings_8" VALUES(1,5100,1.0,1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1.0,0.0);
INSERT INTO "readings_8" VALUES(1,5120,1.0,21,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,21.0,0.0);
INSERT INTO "readings_8" VALUES(1,5140,1.0,41,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,41.0,0.0);
INSERT INTO "readings_8" VALUES(2,5105,1.0,7,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7.0,0.0);
CREATE TABLE remembered (
	room TEXT NOT NULL, 
	name TEXT NOT NULL, 
	value TEXT, 
	PRIMARY KEY (room, name)
);
INSERT INTO "remembered" VALUES('nodes','0000:0000:0010:0000','["a (0000:0000:0010:0000)", "left (0000:0000:0020:0000) port 1"]');
INSERT INTO "remembered" VALUES('nodes','0000:0000:0020:0000','["left (0000:0000:0020:0000)", ""]');
INSERT INTO "remembered" VALUES('nodes','0000:0000:0010:0003','["b (0000:0000:0010:0003)", "left (0000:0000:0020:0000) port 2"]');
INSERT INTO "remembered" VALUES('nodes','0000:0000:0020:0001','["right (0000:0000:0020:0001)", ""]');
INSERT INTO "remembered" VALUES('nodes','0000:0000:0030:0000','["d (0000:0000:0030:0000)", "right (0000:0000:0020:0001) port 2"]');
INSERT INTO "remembered" VALUES('links','["0000:0000:0010:0000", 1, "0000:0000:0020:0000", 1]','["a (0000:0000:0010:0000) port 1", "left (0000:0000:0020:0000) port 1"]');
INSERT INTO "remembered" VALUES('links','["0000:0000:0020:0000", 4, "0000:0000:0020:0001", 4]','["left (0000:0000:0020:0000) port 4", "right (0000:0000:0020:0001) port 4"]');
INSERT INTO "remembered" VALUES('links','["0000:0000:0010:0003", 1, "0000:0000:0020:0000", 2]','["b (0000:0000:0010:0003) port 1", "left (0000:0000:0020:0000) port 2"]');
INSERT INTO "remembered" VALUES('links','["0000:0000:0010:0003", 2, "0000:0000:0020:0001", 5]','["b (0000:0000:0010:0003) port 2", "right (0000:0000:0020:0001) port 5"]');
INSERT INTO "remembered" VALUES('links','["0000:0000:0020:0001", 2, "0000:0000:0030:0000", 1]','["right (0000:0000:0020:0001) port 2", "d (0000:0000:0030:0000) port 1"]');
INSERT INTO "remembered" VALUES('changes','1','[1, 40.0, "link-gone", "left (0000:0000:0020:0000) port 3", "its link to right (0000:0000:0020:0001) port 3 is gone", "0000:0000:0020:0000", 3]');
INSERT INTO "remembered" VALUES('findings','[["sweep", "link-gone", "0000:0000:0020:0000", 3], 40.0]','[["sweep", "link-gone", "0000:0000:0020:0000", 3], ["left (0000:0000:0020:0000) port 3", "its link to right (0000:0000:0020:0001) port 3 is gone", "0000:0000:0020:0000", 3], 40.0, 44.33, 170.0, 1]');
INSERT INTO "remembered" VALUES('changes','2','[2, 44.33, "finding-raised", "left (0000:0000:0020:0000) port 3", "link-gone: its link to right (0000:0000:0020:0001) port 3 is gone", "0000:0000:0020:0000", 3]');
INSERT INTO "remembered" VALUES('changes','3','[3, 137.0, "link-came", "left (0000:0000:0020:0000) port 3", "it is linked to right (0000:0000:0020:0001) port 3, 4x HDR", "0000:0000:0020:0000", 3]');
INSERT INTO "remembered" VALUES('links','["0000:0000:0020:0000", 3, "0000:0000:0020:0001", 3]','["left (0000:0000:0020:0000) port 3", "right (0000:0000:0020:0001) port 3"]');
INSERT INTO "remembered" VALUES('changes','4','[4, 170.0, "finding-cleared", "left (0000:0000:0020:0000) port 3", "link-gone: its link to right (0000:0000:0020:0001) port 3 is gone", "0000:0000:0020:0000", 3]');
INSERT INTO "remembered" VALUES('findings','[["sweep", "node-gone", "0000:0000:0010:0006", null], 337.0]','[["sweep", "node-gone", "0000:0000:0010:0006", null], ["c (0000:0000:0010:0006)", "it is gone; right (0000:0000:0020:0001) port 1 led to it", "0000:0000:0010:0006", null], 337.0, 339.0, null, 1]');
INSERT INTO "remembered" VALUES('changes','5','[5, 337.0, "node-gone", "c (0000:0000:0010:0006)", "it is gone", "0000:0000:0010:0006", null]');
INSERT INTO "remembered" VALUES('changes','6','[6, 339.0, "finding-raised", "c (0000:0000:0010:0006)", "node-gone: it is gone; right (0000:0000:0020:0001) port 1 led to it", "0000:0000:0010:0006", null]');
INSERT INTO "remembered" VALUES('nodes-gone','0000:0000:0010:0006','["c (0000:0000:0010:0006)", "right (0000:0000:0020:0001) port 1", 337.0, "0000:0000:0010:0006", null]');
INSERT INTO "remembered" VALUES('links-gone','["0000:0000:0010:0006", 1, "0000:0000:0020:0001", 1]','["c (0000:0000:0010:0006) port 1", "right (0000:0000:0020:0001) port 1", 337.0, "0000:0000:0010:0006", 1]');
INSERT INTO "remembered" VALUES('told','["sweep", "node-gone", "0000:0000:0010:0006", null]','{"kind": "node-gone", "severity": "warning", "where": "c (0000:0000:0010:0006)", "guid": "0000:0000:0010:0006", "port": null, "text": "it is gone; right (0000:0000:0020:0001) port 1 led to it", "advice": "See that the node has power and a link; if it was removed, wait.", "firstSeen": 337.0, "lastSeen": 352.0, "clearedAt": null, "times": 1}');
INSERT INTO "remembered" VALUES('notifications','["recorded", 3]','[["sweep", "node-gone", "0000:0000:0010:0006", null], true, {"kind": "node-gone", "severity": "warning", "where": "c (0000:0000:0010:0006)", "guid": "0000:0000:0010:0006", "port": null, "text": "it is gone; right (0000:0000:0020:0001) port 1 led to it", "advice": "See that the node has power and a link; if it was removed, wait.", "firstSeen": 337.0, "lastSeen": 352.0, "clearedAt": null, "times": 1}]');
COMMIT;
