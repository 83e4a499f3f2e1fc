from txrdma.cm.strings import IBStringParser, RDMAStringParser

ibMessageParser, rdmaMessageParser = IBStringParser(), RDMAStringParser()
