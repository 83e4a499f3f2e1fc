from txrdma.cm.rsocket.strings import RSocketClientParser, RSocketServerParser

rsocketClientParser, rsocketServerParser = RSocketClientParser(), RSocketServerParser()
