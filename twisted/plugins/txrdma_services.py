"""Services that C{twistd} can run."""

from twisted.application.service import ServiceMaker

smcProxy = ServiceMaker(
    "txrdma.tap.proxy",
    "txrdma.tap.proxy",
    "Passes stream connections on, between SMC-R and anything else that has an endpoint string.",
    "smc-proxy",
)

fabricMonitor = ServiceMaker(
    "txrdma.tap.fabricmonitor",
    "txrdma.tap.fabricmonitor",
    "Watches an InfiniBand fabric: counters, findings, history, metrics.",
    "fabric-monitor",
)

fabricCollector = ServiceMaker(
    "txrdma.tap.fabriccollector",
    "txrdma.tap.fabriccollector",
    "Reads counters for the monitor of a large InfiniBand fabric.",
    "fabric-collector",
)
