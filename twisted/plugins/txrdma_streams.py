from txrdma.btl.stream.strings import BTLClientParser, BTLServerParser
from txrdma.cm.rsocket.strings import RSocketClientParser, RSocketServerParser

btlClientParser, btlServerParser = BTLClientParser(), BTLServerParser()
rsocketClientParser, rsocketServerParser = RSocketClientParser(), RSocketServerParser()
