from txrdma.mad.strings import IbsimPortStringParser
from txrdma.sim.strings import SimulatedPortStringParser

ibsimPortParser = IbsimPortStringParser()
simulatedPortParser = SimulatedPortStringParser()
