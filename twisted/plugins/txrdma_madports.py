from txrdma.mad.ports.strings import IbsimPortStringParser, UmadPortStringParser, VerbsPortStringParser
from txrdma.sim.strings import SimulatedPortStringParser

ibsimPortParser = IbsimPortStringParser()
simulatedPortParser = SimulatedPortStringParser()
umadPortParser = UmadPortStringParser()
verbsPortParser = VerbsPortStringParser()
