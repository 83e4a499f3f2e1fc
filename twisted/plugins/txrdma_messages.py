from txrdma.btl.stream.strings import BTLMessageParser
from txrdma.cm.strings import IBStringParser, RDMAStringParser

btlMessageParser = BTLMessageParser()
ibMessageParser, rdmaMessageParser = IBStringParser(), RDMAStringParser()
