from txrdma.btl.stream.strings import BTLStringParser
from txrdma.cm.rsocket.strings import RSocketStringParser
from txrdma.cm.strings import IBStringParser, RDMAStringParser, SIDRStringParser

ibParser, rdmaParser, sidrParser = IBStringParser(), RDMAStringParser(), SIDRStringParser()
btlParser, rsocketParser = BTLStringParser(), RSocketStringParser()
