from txrdma.btl.stream.strings import BTLClientParser, BTLServerParser
from txrdma.cm.rsocket.strings import RSocketClientParser, RSocketServerParser
from txrdma.cm.strings import IBStringParser, RDMAStringParser, SIDRStringParser

btlClientParser, btlServerParser = BTLClientParser(), BTLServerParser()
rsocketClientParser, rsocketServerParser = RSocketClientParser(), RSocketServerParser()
ibParser, rdmaParser, sidrParser = IBStringParser(), RDMAStringParser(), SIDRStringParser()
