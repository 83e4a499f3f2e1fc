"""
Measure one QUIC stream of aioquic on asyncio, in the roles of L{benchmarks.ends}, over a wire of
L{benchmarks.wires}.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import ssl
import sys
import tempfile
import time
from pathlib import Path

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import serve
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import QuicEvent, StreamDataReceived
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from benchmarks.orders import Orders, pieces, sendMessage
from benchmarks.wires import THERE

_PROTOCOLS = ["txrdma-benchmark"]
_LARGEST_WINDOW = 16 << 20
_IDLE_SECONDS = 60.0


class _Sink(QuicConnectionProtocol):
    """Answers when a stream has ended."""

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, StreamDataReceived) and event.end_stream:
            self._quic.send_stream_data(event.stream_id, b"!", True)
            self.transmit()


def _configuration(isClient: bool) -> QuicConfiguration:
    return QuicConfiguration(
        is_client=isClient,
        alpn_protocols=_PROTOCOLS,
        max_data=_LARGEST_WINDOW,
        max_stream_data=_LARGEST_WINDOW,
        idle_timeout=_IDLE_SECONDS,
        verify_mode=ssl.CERT_NONE,
    )


def _certificate(folder: Path) -> tuple[Path, Path]:
    """Create a certificate, which is not verified, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "benchmark")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    certificate, private = folder / "certificate.pem", folder / "key.pem"
    certificate.write_bytes(made.sign(key, SHA256()).public_bytes(Encoding.PEM))
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return certificate, private


async def server(orders: Orders) -> None:
    """Serve until standard input ends."""
    configuration = _configuration(False)
    with tempfile.TemporaryDirectory() as folder:
        configuration.load_cert_chain(*_certificate(Path(folder)))
    listening = await serve(THERE, 0, configuration=configuration, create_protocol=_Sink)
    transport = listening._transport  # aioquic does not publish the port
    assert transport is not None
    sendMessage({"port": transport.get_extra_info("sockname")[1]})
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    listening.close()
    sendMessage({})


async def client(orders: Orders) -> None:
    """Measure once: send the bytes, and wait for the answer."""
    source = pieces(orders["write"])
    async with connect(THERE, orders["port"], configuration=_configuration(True)) as connection:
        begun = time.perf_counter()
        reader, writer = await connection.create_stream()
        for number in range(orders["bytes"] // orders["write"]):
            writer.write(source[number % len(source)])
        writer.write_eof()
        await reader.read(1)
        sendMessage({"value": orders["bytes"] / (time.perf_counter() - begun)})


if __name__ == "__main__":
    given: Orders = json.loads(sys.argv[2])
    os.sched_setaffinity(0, {given["core"]})
    asyncio.run((server if sys.argv[1] == "server" else client)(given))
