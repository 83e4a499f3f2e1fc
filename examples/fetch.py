"""
Fetch a page by treq, over SMC-R if the server supports it.
"""

import sys

from treq.client import HTTPClient

from twisted.internet.task import react
from twisted.web.client import Agent

from txrdma.web import SMCAgentEndpointFactory


async def main(reactor, url="http://127.0.0.1:8080/"):
    client = HTTPClient(Agent.usingEndpointFactory(reactor, SMCAgentEndpointFactory(reactor)))
    response = await client.get(url)
    print(response.code, len(await response.content()), "bytes")


react(main, sys.argv[1:])
