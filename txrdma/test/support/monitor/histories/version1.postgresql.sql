CREATE TABLE public.done (
    level text NOT NULL,
    until bigint
);
CREATE TABLE public.fec_hours_0 (
    port bigint NOT NULL,
    at bigint NOT NULL,
    seconds double precision,
    "portFECUncorrectableBlockCtr" bigint,
    "portFECCorrectableBlockCtr" bigint,
    "portFECCorrectedSymbolCtr" bigint
);
CREATE TABLE public.fec_minutes_0 (
    port bigint NOT NULL,
    at bigint NOT NULL,
    seconds double precision,
    "portFECUncorrectableBlockCtr" bigint,
    "portFECCorrectableBlockCtr" bigint,
    "portFECCorrectedSymbolCtr" bigint
);
CREATE TABLE public.fec_readings_0 (
    port bigint NOT NULL,
    at bigint NOT NULL,
    seconds double precision,
    "portFECUncorrectableBlockCtr" bigint,
    "portFECCorrectableBlockCtr" bigint,
    "portFECCorrectedSymbolCtr" bigint
);
CREATE TABLE public.fec_readings_1 (
    port bigint NOT NULL,
    at bigint NOT NULL,
    seconds double precision,
    "portFECUncorrectableBlockCtr" bigint,
    "portFECCorrectableBlockCtr" bigint,
    "portFECCorrectedSymbolCtr" bigint
);
CREATE TABLE public.fec_readings_2 (
    port bigint NOT NULL,
    at bigint NOT NULL,
    seconds double precision,
    "portFECUncorrectableBlockCtr" bigint,
    "portFECCorrectableBlockCtr" bigint,
    "portFECCorrectedSymbolCtr" bigint
);
CREATE TABLE public.fec_readings_3 (
    port bigint NOT NULL,
    at bigint NOT NULL,
    seconds double precision,
    "portFECUncorrectableBlockCtr" bigint,
    "portFECCorrectableBlockCtr" bigint,
    "portFECCorrectedSymbolCtr" bigint
);
CREATE TABLE public.fec_readings_4 (
    port bigint NOT NULL,
    at bigint NOT NULL,
    seconds double precision,
    "portFECUncorrectableBlockCtr" bigint,
    "portFECCorrectableBlockCtr" bigint,
    "portFECCorrectedSymbolCtr" bigint
);
CREATE TABLE public.fec_readings_5 (
    port bigint NOT NULL,
    at bigint NOT NULL,
    seconds double precision,
    "portFECUncorrectableBlockCtr" bigint,
    "portFECCorrectableBlockCtr" bigint,
    "portFECCorrectedSymbolCtr" bigint
);
CREATE TABLE public.fec_readings_6 (
    port bigint NOT NULL,
    at bigint NOT NULL,
    seconds double precision,
    "portFECUncorrectableBlockCtr" bigint,
    "portFECCorrectableBlockCtr" bigint,
    "portFECCorrectedSymbolCtr" bigint
);
CREATE TABLE public.fec_readings_7 (
    port bigint NOT NULL,
    at bigint NOT NULL,
    seconds double precision,
    "portFECUncorrectableBlockCtr" bigint,
    "portFECCorrectableBlockCtr" bigint,
    "portFECCorrectedSymbolCtr" bigint
);
CREATE TABLE public.fec_readings_8 (
    port bigint NOT NULL,
    at bigint NOT NULL,
    seconds double precision,
    "portFECUncorrectableBlockCtr" bigint,
    "portFECCorrectableBlockCtr" bigint,
    "portFECCorrectedSymbolCtr" bigint
);
CREATE TABLE public.history_version (
    version bigint NOT NULL
);
CREATE TABLE public.hours_0 (
    port bigint NOT NULL,
    at bigint NOT NULL,
    seconds double precision,
    "portXmitData" bigint,
    "portRcvData" bigint,
    "portXmitPkts" bigint,
    "portRcvPkts" bigint,
    "portUnicastXmitPkts" bigint,
    "portUnicastRcvPkts" bigint,
    "portMulticastXmitPkts" bigint,
    "portMulticastRcvPkts" bigint,
    "symbolErrorCounter" bigint,
    "linkErrorRecoveryCounter" bigint,
    "linkDownedCounter" bigint,
    "portRcvErrors" bigint,
    "portRcvRemotePhysicalErrors" bigint,
    "portRcvSwitchRelayErrors" bigint,
    "portXmitDiscards" bigint,
    "portXmitConstraintErrors" bigint,
    "portRcvConstraintErrors" bigint,
    "localLinkIntegrityErrors" bigint,
    "excessiveBufferOverrunErrors" bigint,
    "vl15Dropped" bigint,
    "qp1Dropped" bigint,
    "portXmitWait" bigint,
    "peakXmit" double precision,
    "peakRcv" double precision
);
CREATE TABLE public.minutes_0 (
    port bigint NOT NULL,
    at bigint NOT NULL,
    seconds double precision,
    "portXmitData" bigint,
    "portRcvData" bigint,
    "portXmitPkts" bigint,
    "portRcvPkts" bigint,
    "portUnicastXmitPkts" bigint,
    "portUnicastRcvPkts" bigint,
    "portMulticastXmitPkts" bigint,
    "portMulticastRcvPkts" bigint,
    "symbolErrorCounter" bigint,
    "linkErrorRecoveryCounter" bigint,
    "linkDownedCounter" bigint,
    "portRcvErrors" bigint,
    "portRcvRemotePhysicalErrors" bigint,
    "portRcvSwitchRelayErrors" bigint,
    "portXmitDiscards" bigint,
    "portXmitConstraintErrors" bigint,
    "portRcvConstraintErrors" bigint,
    "localLinkIntegrityErrors" bigint,
    "excessiveBufferOverrunErrors" bigint,
    "vl15Dropped" bigint,
    "qp1Dropped" bigint,
    "portXmitWait" bigint,
    "peakXmit" double precision,
    "peakRcv" double precision
);
CREATE TABLE public.ports (
    id bigint NOT NULL,
    guid bytea,
    number bigint
);
CREATE TABLE public.readings_0 (
    port bigint NOT NULL,
    at bigint NOT NULL,
    seconds double precision,
    "portXmitData" bigint,
    "portRcvData" bigint,
    "portXmitPkts" bigint,
    "portRcvPkts" bigint,
    "portUnicastXmitPkts" bigint,
    "portUnicastRcvPkts" bigint,
    "portMulticastXmitPkts" bigint,
    "portMulticastRcvPkts" bigint,
    "symbolErrorCounter" bigint,
    "linkErrorRecoveryCounter" bigint,
    "linkDownedCounter" bigint,
    "portRcvErrors" bigint,
    "portRcvRemotePhysicalErrors" bigint,
    "portRcvSwitchRelayErrors" bigint,
    "portXmitDiscards" bigint,
    "portXmitConstraintErrors" bigint,
    "portRcvConstraintErrors" bigint,
    "localLinkIntegrityErrors" bigint,
    "excessiveBufferOverrunErrors" bigint,
    "vl15Dropped" bigint,
    "qp1Dropped" bigint,
    "portXmitWait" bigint,
    "peakXmit" double precision,
    "peakRcv" double precision
);
CREATE TABLE public.readings_1 (
    port bigint NOT NULL,
    at bigint NOT NULL,
    seconds double precision,
    "portXmitData" bigint,
    "portRcvData" bigint,
    "portXmitPkts" bigint,
    "portRcvPkts" bigint,
    "portUnicastXmitPkts" bigint,
    "portUnicastRcvPkts" bigint,
    "portMulticastXmitPkts" bigint,
    "portMulticastRcvPkts" bigint,
    "symbolErrorCounter" bigint,
    "linkErrorRecoveryCounter" bigint,
    "linkDownedCounter" bigint,
    "portRcvErrors" bigint,
    "portRcvRemotePhysicalErrors" bigint,
    "portRcvSwitchRelayErrors" bigint,
    "portXmitDiscards" bigint,
    "portXmitConstraintErrors" bigint,
    "portRcvConstraintErrors" bigint,
    "localLinkIntegrityErrors" bigint,
    "excessiveBufferOverrunErrors" bigint,
    "vl15Dropped" bigint,
    "qp1Dropped" bigint,
    "portXmitWait" bigint,
    "peakXmit" double precision,
    "peakRcv" double precision
);
CREATE TABLE public.readings_2 (
    port bigint NOT NULL,
    at bigint NOT NULL,
    seconds double precision,
    "portXmitData" bigint,
    "portRcvData" bigint,
    "portXmitPkts" bigint,
    "portRcvPkts" bigint,
    "portUnicastXmitPkts" bigint,
    "portUnicastRcvPkts" bigint,
    "portMulticastXmitPkts" bigint,
    "portMulticastRcvPkts" bigint,
    "symbolErrorCounter" bigint,
    "linkErrorRecoveryCounter" bigint,
    "linkDownedCounter" bigint,
    "portRcvErrors" bigint,
    "portRcvRemotePhysicalErrors" bigint,
    "portRcvSwitchRelayErrors" bigint,
    "portXmitDiscards" bigint,
    "portXmitConstraintErrors" bigint,
    "portRcvConstraintErrors" bigint,
    "localLinkIntegrityErrors" bigint,
    "excessiveBufferOverrunErrors" bigint,
    "vl15Dropped" bigint,
    "qp1Dropped" bigint,
    "portXmitWait" bigint,
    "peakXmit" double precision,
    "peakRcv" double precision
);
CREATE TABLE public.readings_3 (
    port bigint NOT NULL,
    at bigint NOT NULL,
    seconds double precision,
    "portXmitData" bigint,
    "portRcvData" bigint,
    "portXmitPkts" bigint,
    "portRcvPkts" bigint,
    "portUnicastXmitPkts" bigint,
    "portUnicastRcvPkts" bigint,
    "portMulticastXmitPkts" bigint,
    "portMulticastRcvPkts" bigint,
    "symbolErrorCounter" bigint,
    "linkErrorRecoveryCounter" bigint,
    "linkDownedCounter" bigint,
    "portRcvErrors" bigint,
    "portRcvRemotePhysicalErrors" bigint,
    "portRcvSwitchRelayErrors" bigint,
    "portXmitDiscards" bigint,
    "portXmitConstraintErrors" bigint,
    "portRcvConstraintErrors" bigint,
    "localLinkIntegrityErrors" bigint,
    "excessiveBufferOverrunErrors" bigint,
    "vl15Dropped" bigint,
    "qp1Dropped" bigint,
    "portXmitWait" bigint,
    "peakXmit" double precision,
    "peakRcv" double precision
);
CREATE TABLE public.readings_4 (
    port bigint NOT NULL,
    at bigint NOT NULL,
    seconds double precision,
    "portXmitData" bigint,
    "portRcvData" bigint,
    "portXmitPkts" bigint,
    "portRcvPkts" bigint,
    "portUnicastXmitPkts" bigint,
    "portUnicastRcvPkts" bigint,
    "portMulticastXmitPkts" bigint,
    "portMulticastRcvPkts" bigint,
    "symbolErrorCounter" bigint,
    "linkErrorRecoveryCounter" bigint,
    "linkDownedCounter" bigint,
    "portRcvErrors" bigint,
    "portRcvRemotePhysicalErrors" bigint,
    "portRcvSwitchRelayErrors" bigint,
    "portXmitDiscards" bigint,
    "portXmitConstraintErrors" bigint,
    "portRcvConstraintErrors" bigint,
    "localLinkIntegrityErrors" bigint,
    "excessiveBufferOverrunErrors" bigint,
    "vl15Dropped" bigint,
    "qp1Dropped" bigint,
    "portXmitWait" bigint,
    "peakXmit" double precision,
    "peakRcv" double precision
);
CREATE TABLE public.readings_5 (
    port bigint NOT NULL,
    at bigint NOT NULL,
    seconds double precision,
    "portXmitData" bigint,
    "portRcvData" bigint,
    "portXmitPkts" bigint,
    "portRcvPkts" bigint,
    "portUnicastXmitPkts" bigint,
    "portUnicastRcvPkts" bigint,
    "portMulticastXmitPkts" bigint,
    "portMulticastRcvPkts" bigint,
    "symbolErrorCounter" bigint,
    "linkErrorRecoveryCounter" bigint,
    "linkDownedCounter" bigint,
    "portRcvErrors" bigint,
    "portRcvRemotePhysicalErrors" bigint,
    "portRcvSwitchRelayErrors" bigint,
    "portXmitDiscards" bigint,
    "portXmitConstraintErrors" bigint,
    "portRcvConstraintErrors" bigint,
    "localLinkIntegrityErrors" bigint,
    "excessiveBufferOverrunErrors" bigint,
    "vl15Dropped" bigint,
    "qp1Dropped" bigint,
    "portXmitWait" bigint,
    "peakXmit" double precision,
    "peakRcv" double precision
);
CREATE TABLE public.readings_6 (
    port bigint NOT NULL,
    at bigint NOT NULL,
    seconds double precision,
    "portXmitData" bigint,
    "portRcvData" bigint,
    "portXmitPkts" bigint,
    "portRcvPkts" bigint,
    "portUnicastXmitPkts" bigint,
    "portUnicastRcvPkts" bigint,
    "portMulticastXmitPkts" bigint,
    "portMulticastRcvPkts" bigint,
    "symbolErrorCounter" bigint,
    "linkErrorRecoveryCounter" bigint,
    "linkDownedCounter" bigint,
    "portRcvErrors" bigint,
    "portRcvRemotePhysicalErrors" bigint,
    "portRcvSwitchRelayErrors" bigint,
    "portXmitDiscards" bigint,
    "portXmitConstraintErrors" bigint,
    "portRcvConstraintErrors" bigint,
    "localLinkIntegrityErrors" bigint,
    "excessiveBufferOverrunErrors" bigint,
    "vl15Dropped" bigint,
    "qp1Dropped" bigint,
    "portXmitWait" bigint,
    "peakXmit" double precision,
    "peakRcv" double precision
);
CREATE TABLE public.readings_7 (
    port bigint NOT NULL,
    at bigint NOT NULL,
    seconds double precision,
    "portXmitData" bigint,
    "portRcvData" bigint,
    "portXmitPkts" bigint,
    "portRcvPkts" bigint,
    "portUnicastXmitPkts" bigint,
    "portUnicastRcvPkts" bigint,
    "portMulticastXmitPkts" bigint,
    "portMulticastRcvPkts" bigint,
    "symbolErrorCounter" bigint,
    "linkErrorRecoveryCounter" bigint,
    "linkDownedCounter" bigint,
    "portRcvErrors" bigint,
    "portRcvRemotePhysicalErrors" bigint,
    "portRcvSwitchRelayErrors" bigint,
    "portXmitDiscards" bigint,
    "portXmitConstraintErrors" bigint,
    "portRcvConstraintErrors" bigint,
    "localLinkIntegrityErrors" bigint,
    "excessiveBufferOverrunErrors" bigint,
    "vl15Dropped" bigint,
    "qp1Dropped" bigint,
    "portXmitWait" bigint,
    "peakXmit" double precision,
    "peakRcv" double precision
);
CREATE TABLE public.readings_8 (
    port bigint NOT NULL,
    at bigint NOT NULL,
    seconds double precision,
    "portXmitData" bigint,
    "portRcvData" bigint,
    "portXmitPkts" bigint,
    "portRcvPkts" bigint,
    "portUnicastXmitPkts" bigint,
    "portUnicastRcvPkts" bigint,
    "portMulticastXmitPkts" bigint,
    "portMulticastRcvPkts" bigint,
    "symbolErrorCounter" bigint,
    "linkErrorRecoveryCounter" bigint,
    "linkDownedCounter" bigint,
    "portRcvErrors" bigint,
    "portRcvRemotePhysicalErrors" bigint,
    "portRcvSwitchRelayErrors" bigint,
    "portXmitDiscards" bigint,
    "portXmitConstraintErrors" bigint,
    "portRcvConstraintErrors" bigint,
    "localLinkIntegrityErrors" bigint,
    "excessiveBufferOverrunErrors" bigint,
    "vl15Dropped" bigint,
    "qp1Dropped" bigint,
    "portXmitWait" bigint,
    "peakXmit" double precision,
    "peakRcv" double precision
);
CREATE TABLE public.remembered (
    room text NOT NULL,
    name text NOT NULL,
    value text
);
INSERT INTO public.done VALUES ('hours', 3600);
INSERT INTO public.done VALUES ('fec_hours', 3600);
INSERT INTO public.done VALUES ('minutes', 5340);
INSERT INTO public.done VALUES ('fec_minutes', 5340);
INSERT INTO public.fec_hours_0 VALUES (1, 0, 720, 0, 24, NULL);
INSERT INTO public.fec_minutes_0 VALUES (1, 0, 60, 0, 2, NULL);
INSERT INTO public.fec_minutes_0 VALUES (1, 300, 60, 0, 2, NULL);
INSERT INTO public.fec_minutes_0 VALUES (1, 600, 60, 0, 2, NULL);
INSERT INTO public.fec_minutes_0 VALUES (1, 900, 60, 0, 2, NULL);
INSERT INTO public.fec_minutes_0 VALUES (1, 1200, 60, 0, 2, NULL);
INSERT INTO public.fec_minutes_0 VALUES (1, 1500, 60, 0, 2, NULL);
INSERT INTO public.fec_minutes_0 VALUES (1, 1800, 60, 0, 2, NULL);
INSERT INTO public.fec_minutes_0 VALUES (1, 2100, 60, 0, 2, NULL);
INSERT INTO public.fec_minutes_0 VALUES (1, 2400, 60, 0, 2, NULL);
INSERT INTO public.fec_minutes_0 VALUES (1, 2700, 60, 0, 2, NULL);
INSERT INTO public.fec_minutes_0 VALUES (1, 3000, 60, 0, 2, NULL);
INSERT INTO public.fec_minutes_0 VALUES (1, 3300, 60, 0, 2, NULL);
INSERT INTO public.fec_minutes_0 VALUES (1, 3600, 60, 0, 2, NULL);
INSERT INTO public.fec_minutes_0 VALUES (1, 3900, 60, 0, 2, NULL);
INSERT INTO public.fec_minutes_0 VALUES (1, 4200, 60, 0, 2, NULL);
INSERT INTO public.fec_minutes_0 VALUES (1, 4500, 60, 0, 2, NULL);
INSERT INTO public.fec_minutes_0 VALUES (1, 4800, 60, 0, 2, NULL);
INSERT INTO public.fec_minutes_0 VALUES (1, 5100, 60, 0, 2, NULL);
INSERT INTO public.fec_readings_0 VALUES (1, 30, 60, 0, 2, NULL);
INSERT INTO public.fec_readings_0 VALUES (1, 330, 60, 0, 2, NULL);
INSERT INTO public.fec_readings_1 VALUES (1, 630, 60, 0, 2, NULL);
INSERT INTO public.fec_readings_1 VALUES (1, 930, 60, 0, 2, NULL);
INSERT INTO public.fec_readings_2 VALUES (1, 1230, 60, 0, 2, NULL);
INSERT INTO public.fec_readings_2 VALUES (1, 1530, 60, 0, 2, NULL);
INSERT INTO public.fec_readings_3 VALUES (1, 1830, 60, 0, 2, NULL);
INSERT INTO public.fec_readings_3 VALUES (1, 2130, 60, 0, 2, NULL);
INSERT INTO public.fec_readings_4 VALUES (1, 2430, 60, 0, 2, NULL);
INSERT INTO public.fec_readings_4 VALUES (1, 2730, 60, 0, 2, NULL);
INSERT INTO public.fec_readings_5 VALUES (1, 3030, 60, 0, 2, NULL);
INSERT INTO public.fec_readings_5 VALUES (1, 3330, 60, 0, 2, NULL);
INSERT INTO public.fec_readings_6 VALUES (1, 3630, 60, 0, 2, NULL);
INSERT INTO public.fec_readings_6 VALUES (1, 3930, 60, 0, 2, NULL);
INSERT INTO public.fec_readings_7 VALUES (1, 4230, 60, 0, 2, NULL);
INSERT INTO public.fec_readings_7 VALUES (1, 4530, 60, 0, 2, NULL);
INSERT INTO public.fec_readings_8 VALUES (1, 4830, 60, 0, 2, NULL);
INSERT INTO public.fec_readings_8 VALUES (1, 5130, 60, 0, 2, NULL);
INSERT INTO public.history_version VALUES (1);
INSERT INTO public.hours_0 VALUES (1, 0, 36, 756, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.hours_0 VALUES (2, 0, 12, 84, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.minutes_0 VALUES (1, 0, 3, 63, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.minutes_0 VALUES (2, 0, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.minutes_0 VALUES (1, 300, 3, 63, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.minutes_0 VALUES (2, 300, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.minutes_0 VALUES (1, 600, 3, 63, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.minutes_0 VALUES (2, 600, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.minutes_0 VALUES (1, 900, 3, 63, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.minutes_0 VALUES (2, 900, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.minutes_0 VALUES (1, 1200, 3, 63, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.minutes_0 VALUES (2, 1200, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.minutes_0 VALUES (1, 1500, 3, 63, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.minutes_0 VALUES (2, 1500, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.minutes_0 VALUES (1, 1800, 3, 63, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.minutes_0 VALUES (2, 1800, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.minutes_0 VALUES (1, 2100, 3, 63, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.minutes_0 VALUES (2, 2100, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.minutes_0 VALUES (1, 2400, 3, 63, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.minutes_0 VALUES (2, 2400, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.minutes_0 VALUES (1, 2700, 3, 63, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.minutes_0 VALUES (2, 2700, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.minutes_0 VALUES (1, 3000, 3, 63, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.minutes_0 VALUES (2, 3000, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.minutes_0 VALUES (1, 3300, 3, 63, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.minutes_0 VALUES (2, 3300, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.minutes_0 VALUES (1, 3600, 3, 63, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.minutes_0 VALUES (2, 3600, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.minutes_0 VALUES (1, 3900, 3, 63, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.minutes_0 VALUES (2, 3900, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.minutes_0 VALUES (1, 4200, 3, 63, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.minutes_0 VALUES (2, 4200, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.minutes_0 VALUES (1, 4500, 3, 63, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.minutes_0 VALUES (2, 4500, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.minutes_0 VALUES (1, 4800, 3, 63, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.minutes_0 VALUES (2, 4800, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.minutes_0 VALUES (1, 5100, 3, 63, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.minutes_0 VALUES (2, 5100, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.ports VALUES (1, '\x0000000000000001', 3);
INSERT INTO public.ports VALUES (2, '\x0000000000000001', 4);
INSERT INTO public.readings_0 VALUES (1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0);
INSERT INTO public.readings_0 VALUES (1, 20, 1, 21, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 21, 0);
INSERT INTO public.readings_0 VALUES (1, 40, 1, 41, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.readings_0 VALUES (2, 5, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.readings_0 VALUES (1, 300, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0);
INSERT INTO public.readings_0 VALUES (1, 320, 1, 21, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 21, 0);
INSERT INTO public.readings_0 VALUES (1, 340, 1, 41, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.readings_0 VALUES (2, 305, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.readings_1 VALUES (1, 600, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0);
INSERT INTO public.readings_1 VALUES (1, 620, 1, 21, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 21, 0);
INSERT INTO public.readings_1 VALUES (1, 640, 1, 41, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.readings_1 VALUES (2, 605, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.readings_1 VALUES (1, 900, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0);
INSERT INTO public.readings_1 VALUES (1, 920, 1, 21, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 21, 0);
INSERT INTO public.readings_1 VALUES (1, 940, 1, 41, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.readings_1 VALUES (2, 905, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.readings_2 VALUES (1, 1200, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0);
INSERT INTO public.readings_2 VALUES (1, 1220, 1, 21, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 21, 0);
INSERT INTO public.readings_2 VALUES (1, 1240, 1, 41, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.readings_2 VALUES (2, 1205, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.readings_2 VALUES (1, 1500, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0);
INSERT INTO public.readings_2 VALUES (1, 1520, 1, 21, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 21, 0);
INSERT INTO public.readings_2 VALUES (1, 1540, 1, 41, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.readings_2 VALUES (2, 1505, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.readings_3 VALUES (1, 1800, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0);
INSERT INTO public.readings_3 VALUES (1, 1820, 1, 21, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 21, 0);
INSERT INTO public.readings_3 VALUES (1, 1840, 1, 41, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.readings_3 VALUES (2, 1805, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.readings_3 VALUES (1, 2100, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0);
INSERT INTO public.readings_3 VALUES (1, 2120, 1, 21, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 21, 0);
INSERT INTO public.readings_3 VALUES (1, 2140, 1, 41, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.readings_3 VALUES (2, 2105, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.readings_4 VALUES (1, 2400, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0);
INSERT INTO public.readings_4 VALUES (1, 2420, 1, 21, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 21, 0);
INSERT INTO public.readings_4 VALUES (1, 2440, 1, 41, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.readings_4 VALUES (2, 2405, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.readings_4 VALUES (1, 2700, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0);
INSERT INTO public.readings_4 VALUES (1, 2720, 1, 21, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 21, 0);
INSERT INTO public.readings_4 VALUES (1, 2740, 1, 41, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.readings_4 VALUES (2, 2705, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.readings_5 VALUES (1, 3000, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0);
INSERT INTO public.readings_5 VALUES (1, 3020, 1, 21, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 21, 0);
INSERT INTO public.readings_5 VALUES (1, 3040, 1, 41, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.readings_5 VALUES (2, 3005, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.readings_5 VALUES (1, 3300, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0);
INSERT INTO public.readings_5 VALUES (1, 3320, 1, 21, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 21, 0);
INSERT INTO public.readings_5 VALUES (1, 3340, 1, 41, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.readings_5 VALUES (2, 3305, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.readings_6 VALUES (1, 3600, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0);
INSERT INTO public.readings_6 VALUES (1, 3620, 1, 21, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 21, 0);
INSERT INTO public.readings_6 VALUES (1, 3640, 1, 41, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.readings_6 VALUES (2, 3605, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.readings_6 VALUES (1, 3900, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0);
INSERT INTO public.readings_6 VALUES (1, 3920, 1, 21, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 21, 0);
INSERT INTO public.readings_6 VALUES (1, 3940, 1, 41, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.readings_6 VALUES (2, 3905, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.readings_7 VALUES (1, 4200, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0);
INSERT INTO public.readings_7 VALUES (1, 4220, 1, 21, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 21, 0);
INSERT INTO public.readings_7 VALUES (1, 4240, 1, 41, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.readings_7 VALUES (2, 4205, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.readings_7 VALUES (1, 4500, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0);
INSERT INTO public.readings_7 VALUES (1, 4520, 1, 21, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 21, 0);
INSERT INTO public.readings_7 VALUES (1, 4540, 1, 41, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.readings_7 VALUES (2, 4505, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.readings_8 VALUES (1, 4800, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0);
INSERT INTO public.readings_8 VALUES (1, 4820, 1, 21, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 21, 0);
INSERT INTO public.readings_8 VALUES (1, 4840, 1, 41, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.readings_8 VALUES (2, 4805, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.readings_8 VALUES (1, 5100, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0);
INSERT INTO public.readings_8 VALUES (1, 5120, 1, 21, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 21, 0);
INSERT INTO public.readings_8 VALUES (1, 5140, 1, 41, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 0);
INSERT INTO public.readings_8 VALUES (2, 5105, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0);
INSERT INTO public.remembered VALUES ('nodes', '0000:0000:0010:0000', '["a (0000:0000:0010:0000)", "left (0000:0000:0020:0000) port 1"]');
INSERT INTO public.remembered VALUES ('nodes', '0000:0000:0020:0000', '["left (0000:0000:0020:0000)", ""]');
INSERT INTO public.remembered VALUES ('nodes', '0000:0000:0010:0003', '["b (0000:0000:0010:0003)", "left (0000:0000:0020:0000) port 2"]');
INSERT INTO public.remembered VALUES ('nodes', '0000:0000:0020:0001', '["right (0000:0000:0020:0001)", ""]');
INSERT INTO public.remembered VALUES ('nodes', '0000:0000:0030:0000', '["d (0000:0000:0030:0000)", "right (0000:0000:0020:0001) port 2"]');
INSERT INTO public.remembered VALUES ('links', '["0000:0000:0010:0000", 1, "0000:0000:0020:0000", 1]', '["a (0000:0000:0010:0000) port 1", "left (0000:0000:0020:0000) port 1"]');
INSERT INTO public.remembered VALUES ('links', '["0000:0000:0020:0000", 4, "0000:0000:0020:0001", 4]', '["left (0000:0000:0020:0000) port 4", "right (0000:0000:0020:0001) port 4"]');
INSERT INTO public.remembered VALUES ('links', '["0000:0000:0010:0003", 1, "0000:0000:0020:0000", 2]', '["b (0000:0000:0010:0003) port 1", "left (0000:0000:0020:0000) port 2"]');
INSERT INTO public.remembered VALUES ('links', '["0000:0000:0010:0003", 2, "0000:0000:0020:0001", 5]', '["b (0000:0000:0010:0003) port 2", "right (0000:0000:0020:0001) port 5"]');
INSERT INTO public.remembered VALUES ('links', '["0000:0000:0020:0001", 2, "0000:0000:0030:0000", 1]', '["right (0000:0000:0020:0001) port 2", "d (0000:0000:0030:0000) port 1"]');
INSERT INTO public.remembered VALUES ('changes', '1', '[1, 40.0, "link-gone", "left (0000:0000:0020:0000) port 3", "its link to right (0000:0000:0020:0001) port 3 is gone", "0000:0000:0020:0000", 3]');
INSERT INTO public.remembered VALUES ('changes', '2', '[2, 44.33, "finding-raised", "left (0000:0000:0020:0000) port 3", "link-gone: its link to right (0000:0000:0020:0001) port 3 is gone", "0000:0000:0020:0000", 3]');
INSERT INTO public.remembered VALUES ('changes', '3', '[3, 137.0, "link-came", "left (0000:0000:0020:0000) port 3", "it is linked to right (0000:0000:0020:0001) port 3, 4x HDR", "0000:0000:0020:0000", 3]');
INSERT INTO public.remembered VALUES ('links', '["0000:0000:0020:0000", 3, "0000:0000:0020:0001", 3]', '["left (0000:0000:0020:0000) port 3", "right (0000:0000:0020:0001) port 3"]');
INSERT INTO public.remembered VALUES ('findings', '[["sweep", "link-gone", "0000:0000:0020:0000", 3], 40.0]', '[["sweep", "link-gone", "0000:0000:0020:0000", 3], ["left (0000:0000:0020:0000) port 3", "its link to right (0000:0000:0020:0001) port 3 is gone", "0000:0000:0020:0000", 3], 40.0, 44.33, 170.0, 1]');
INSERT INTO public.remembered VALUES ('changes', '4', '[4, 170.0, "finding-cleared", "left (0000:0000:0020:0000) port 3", "link-gone: its link to right (0000:0000:0020:0001) port 3 is gone", "0000:0000:0020:0000", 3]');
INSERT INTO public.remembered VALUES ('findings', '[["sweep", "node-gone", "0000:0000:0010:0006", null], 337.0]', '[["sweep", "node-gone", "0000:0000:0010:0006", null], ["c (0000:0000:0010:0006)", "it is gone; right (0000:0000:0020:0001) port 1 led to it", "0000:0000:0010:0006", null], 337.0, 339.0, null, 1]');
INSERT INTO public.remembered VALUES ('changes', '5', '[5, 337.0, "node-gone", "c (0000:0000:0010:0006)", "it is gone", "0000:0000:0010:0006", null]');
INSERT INTO public.remembered VALUES ('changes', '6', '[6, 339.0, "finding-raised", "c (0000:0000:0010:0006)", "node-gone: it is gone; right (0000:0000:0020:0001) port 1 led to it", "0000:0000:0010:0006", null]');
INSERT INTO public.remembered VALUES ('nodes-gone', '0000:0000:0010:0006', '["c (0000:0000:0010:0006)", "right (0000:0000:0020:0001) port 1", 337.0, "0000:0000:0010:0006", null]');
INSERT INTO public.remembered VALUES ('links-gone', '["0000:0000:0010:0006", 1, "0000:0000:0020:0001", 1]', '["c (0000:0000:0010:0006) port 1", "right (0000:0000:0020:0001) port 1", 337.0, "0000:0000:0010:0006", 1]');
INSERT INTO public.remembered VALUES ('told', '["sweep", "node-gone", "0000:0000:0010:0006", null]', '{"kind": "node-gone", "severity": "warning", "where": "c (0000:0000:0010:0006)", "guid": "0000:0000:0010:0006", "port": null, "text": "it is gone; right (0000:0000:0020:0001) port 1 led to it", "advice": "See that the node has power and a link; if it was removed, wait.", "firstSeen": 337.0, "lastSeen": 352.0, "clearedAt": null, "times": 1}');
INSERT INTO public.remembered VALUES ('notifications', '["recorded", 3]', '[["sweep", "node-gone", "0000:0000:0010:0006", null], true, {"kind": "node-gone", "severity": "warning", "where": "c (0000:0000:0010:0006)", "guid": "0000:0000:0010:0006", "port": null, "text": "it is gone; right (0000:0000:0020:0001) port 1 led to it", "advice": "See that the node has power and a link; if it was removed, wait.", "firstSeen": 337.0, "lastSeen": 352.0, "clearedAt": null, "times": 1}]');
ALTER TABLE ONLY public.done
    ADD CONSTRAINT done_pkey PRIMARY KEY (level);
ALTER TABLE ONLY public.fec_hours_0
    ADD CONSTRAINT fec_hours_0_pkey PRIMARY KEY (port, at);
ALTER TABLE ONLY public.fec_minutes_0
    ADD CONSTRAINT fec_minutes_0_pkey PRIMARY KEY (port, at);
ALTER TABLE ONLY public.fec_readings_0
    ADD CONSTRAINT fec_readings_0_pkey PRIMARY KEY (port, at);
ALTER TABLE ONLY public.fec_readings_1
    ADD CONSTRAINT fec_readings_1_pkey PRIMARY KEY (port, at);
ALTER TABLE ONLY public.fec_readings_2
    ADD CONSTRAINT fec_readings_2_pkey PRIMARY KEY (port, at);
ALTER TABLE ONLY public.fec_readings_3
    ADD CONSTRAINT fec_readings_3_pkey PRIMARY KEY (port, at);
ALTER TABLE ONLY public.fec_readings_4
    ADD CONSTRAINT fec_readings_4_pkey PRIMARY KEY (port, at);
ALTER TABLE ONLY public.fec_readings_5
    ADD CONSTRAINT fec_readings_5_pkey PRIMARY KEY (port, at);
ALTER TABLE ONLY public.fec_readings_6
    ADD CONSTRAINT fec_readings_6_pkey PRIMARY KEY (port, at);
ALTER TABLE ONLY public.fec_readings_7
    ADD CONSTRAINT fec_readings_7_pkey PRIMARY KEY (port, at);
ALTER TABLE ONLY public.fec_readings_8
    ADD CONSTRAINT fec_readings_8_pkey PRIMARY KEY (port, at);
ALTER TABLE ONLY public.history_version
    ADD CONSTRAINT history_version_pkey PRIMARY KEY (version);
ALTER TABLE ONLY public.hours_0
    ADD CONSTRAINT hours_0_pkey PRIMARY KEY (port, at);
ALTER TABLE ONLY public.minutes_0
    ADD CONSTRAINT minutes_0_pkey PRIMARY KEY (port, at);
ALTER TABLE ONLY public.ports
    ADD CONSTRAINT ports_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.readings_0
    ADD CONSTRAINT readings_0_pkey PRIMARY KEY (port, at);
ALTER TABLE ONLY public.readings_1
    ADD CONSTRAINT readings_1_pkey PRIMARY KEY (port, at);
ALTER TABLE ONLY public.readings_2
    ADD CONSTRAINT readings_2_pkey PRIMARY KEY (port, at);
ALTER TABLE ONLY public.readings_3
    ADD CONSTRAINT readings_3_pkey PRIMARY KEY (port, at);
ALTER TABLE ONLY public.readings_4
    ADD CONSTRAINT readings_4_pkey PRIMARY KEY (port, at);
ALTER TABLE ONLY public.readings_5
    ADD CONSTRAINT readings_5_pkey PRIMARY KEY (port, at);
ALTER TABLE ONLY public.readings_6
    ADD CONSTRAINT readings_6_pkey PRIMARY KEY (port, at);
ALTER TABLE ONLY public.readings_7
    ADD CONSTRAINT readings_7_pkey PRIMARY KEY (port, at);
ALTER TABLE ONLY public.readings_8
    ADD CONSTRAINT readings_8_pkey PRIMARY KEY (port, at);
ALTER TABLE ONLY public.remembered
    ADD CONSTRAINT remembered_pkey PRIMARY KEY (room, name);
