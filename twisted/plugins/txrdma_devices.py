from txrdma.soft.strings import SoftDeviceStringParser

softDeviceParser = SoftDeviceStringParser()
