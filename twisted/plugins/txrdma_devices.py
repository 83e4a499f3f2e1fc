from txrdma.soft.strings import SoftDeviceStringParser
from txrdma.verbs.strings import PyverbsDeviceStringParser

softDeviceParser = SoftDeviceStringParser()
pyverbsDeviceParser = PyverbsDeviceStringParser()
