from txrdma.smc.strings import SMCClientParser, SMCServerParser

smcClientParser, smcServerParser = SMCClientParser(), SMCServerParser()
