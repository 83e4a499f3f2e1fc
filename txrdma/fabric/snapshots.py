"""
Snapshots of fabrics as JSON, with decoded fields for other programs and the encoded attributes.

Most decoded fields are ignored when a snapshot is loaded, because the attributes contain them. A snapshot
with tables is a recording: it also has the answers to requests for them, and its file is compressed.
"""

from __future__ import annotations

import gzip
import json
import os
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

from txrdma.error import InvalidRequest, WireError
from txrdma.fabric.model import Fabric, Node, nodeGUIDIn, Port, Problem
from txrdma.fabric.nodenames import NodeNames
from txrdma.fabric.recording import Answer, Recording
from txrdma.iba.path import IBDRPath, MADEndPort
from txrdma.iba.types import GUID, LID
from txrdma.kit.logs import reasonText
from txrdma.kit.strings import printable
from txrdma.mad.layouts.smp import NodeInfo, PortInfo, SwitchInfo

VERSION: Final = 1
"""Version of snapshots: it grows when programs that know the former version cannot read them."""


def dump(fabric: Fabric, names: NodeNames | None = None) -> dict[str, Any]:
    """
    Return a fabric as a JSON-serializable dictionary for L{load}.

    @param names: names of nodes; by default their descriptions.
    """
    return {
        "nodes": [nodeDict(node, names) for node in fabric.nodes.values()],
        "problems": problemDicts(fabric),
    }


def problemDicts(fabric: Fabric) -> list[dict[str, str]]:
    """Return the problems of a fabric as JSON-serializable dictionaries."""
    return [
        {"kind": problem.kind, "where": problem.where, "text": problem.text} for problem in fabric.problems
    ]


def nodeDict(node: Node, names: NodeNames | None = None) -> dict[str, Any]:
    """Return a node with its ports as a JSON-serializable dictionary."""
    info, route, switchInfo = node.info, node.route, node.switchInfo
    return {
        "guid": str(node.guid),
        "type": node.type.name,
        "name": names.name(node.guid, node.description) if names is not None else node.description,
        "description": node.description,
        "systemImageGUID": str(info.systemImageGUID),
        "vendorID": info.vendorID,
        "deviceID": info.deviceID,
        "revision": info.revision,
        "numPorts": info.numPorts,
        "lid": node.lid,
        "route": None if route is None else str(route),
        "nodeInfo": node.raw.hex(),
        "switchInfo": None if switchInfo is None else switchInfo.encode().hex(),
        "ports": [portDict(port) for port in node.ports.values()],
    }


def portDict(port: Port) -> dict[str, Any]:
    """Return a port and a reference to its peer as a JSON-serializable dictionary."""
    peer, guid = port.peer, port.node.portGUID(port.number)
    document = {
        "number": port.number,
        "guid": None if guid is None else str(guid),
        "lid": port.lid,
        "lmc": port.lmc,
        "state": port.state.name,
        "physicalState": port.physicalState.name,
        "width": port.width,
        "speed": port.speed,
        "gigabits": port.width * port.laneGigabits,
        "peer": None if peer is None else {"guid": str(peer.node.guid), "port": peer.number},
        "portInfo": port.raw.hex(),
    }
    if port.vendors:
        document["extendedPortInfo"] = port.vendors.hex()
    return document


# Loading.


def load(document: Any) -> Fabric:
    """
    Return the fabric of a document that L{dump} has made.

    @raise ValueError: the document is not a fabric.
    """
    fabric = Fabric()
    try:
        for one in document["nodes"]:
            _readNode(fabric, one)
        for one in document["nodes"]:
            _readLinks(fabric, one)
        fabric.problems = [
            Problem(*(printable(str(one[name])) for name in ("kind", "where", "text")))
            for one in document["problems"]
        ]
    except (KeyError, TypeError, AttributeError, IndexError, WireError) as error:
        raise ValueError(f"this is not a fabric: {error!r}") from error
    return fabric


def _readNode(fabric: Fabric, document: dict[str, Any]) -> None:
    route = None if document["route"] is None else IBDRPath.fromString(document["route"])
    node, isNew = fabric.add(_bytes(document["nodeInfo"], NodeInfo.size), route)
    if not isNew:
        raise ValueError(f"this is not a fabric: node {node.guid} is in it twice")
    node.description = printable(str(document["description"]))
    if document["switchInfo"] is not None:
        node.switchInfo = SwitchInfo.decode(bytes.fromhex(document["switchInfo"]))
    for one in document["ports"]:
        port = node.port(_number(one["number"]))
        port.setInfo(_bytes(one["portInfo"], PortInfo.size))
        port.vendors = _bytes(one.get("extendedPortInfo", ""), 64)
        if one["guid"] is not None:
            node.setPortGUID(port.number, GUID.fromString(one["guid"]))


def _readLinks(fabric: Fabric, document: dict[str, Any]) -> None:
    node = fabric.nodes[GUID(nodeGUIDIn(_bytes(document["nodeInfo"], NodeInfo.size)))]
    for one in document["ports"]:
        there = one["peer"]
        if there is not None:
            port, peer = node.port(one["number"]), fabric.nodes[GUID.fromString(there["guid"])]
            if not fabric.link(port, peer.port(_number(there["port"]))):
                raise ValueError(f"this is not a fabric: the ends of the link of {port} differ")


def _number(document: Any) -> int:
    if not isinstance(document, int) or not 0 <= document <= 255:
        raise ValueError(f"this is not a fabric: there is no port {document!r}")
    return document


def _bytes(document: str, count: int) -> bytes:
    """Decode a hexadecimal text, which must have C{count} bytes, or none unless it is a NodeInfo."""
    read = bytes.fromhex(document)
    if len(read) not in (0, count) or (not read and count == NodeInfo.size):
        raise ValueError(f"this is not a fabric: expected {count} bytes, not {document!r}")
    return read


# Recordings.


def dumpRecording(recording: Recording) -> dict[str, Any]:
    """Return a recording as a JSON-serializable dictionary for L{loadRecording}."""
    end = recording.endPort
    answers: dict[str, dict[str, dict[str, Any]]] = {}
    for (rpc, name), several in recording.answers.items():
        here = answers.setdefault(f"{rpc} {name}", {})
        for (lid, part), answer in several.items():
            here.setdefault(str(lid), {})[str(part)] = _shown(answer)
    return {
        "version": VERSION,
        "at": recording.at,
        "port": {"guid": str(end.portGUID), "number": end.portNum, "lid": end.lid, "smLID": end.smLID},
        **dump(recording.fabric),
        "answers": answers,
    }


def _shown(answer: Answer) -> Any:
    if isinstance(answer, list):
        return [one.hex() for one in answer]
    return answer if isinstance(answer, int) else answer.hex()


def loadRecording(document: Any) -> Recording:
    """
    Return the recording of a document that L{dumpRecording} has made; of others, the fabric alone.

    @raise ValueError: the document is not a fabric, or one of a later version.
    """
    version = document.get("version", VERSION) if isinstance(document, dict) else VERSION
    if not isinstance(version, int) or version > VERSION:
        raise ValueError(f"it has version {version!r}, and this program reads versions up to {VERSION}")
    recording = Recording(load(document))
    if "answers" not in document:
        return recording
    try:
        recording.at = float(document["at"])
        port = document["port"]
        recording.endPort = MADEndPort(
            *(GUID.fromString(port["guid"]), ()),
            portNum=_number(port["number"]),
            lid=LID(int(port["lid"])),
            smLID=LID(int(port["smLID"])),
        )
        for call, byLID in document["answers"].items():
            rpc, _, name = call.partition(" ")
            recording.answers[rpc, name] = {
                (int(lid), int(part)): _answer(answer)
                for lid, byPart in byLID.items()
                for part, answer in byPart.items()
            }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"this is not a snapshot: {error!r}") from error
    return recording


def _answer(answer: Any) -> Answer:
    if isinstance(answer, list):
        return [bytes.fromhex(one) for one in answer]
    return answer if isinstance(answer, int) else bytes.fromhex(answer)


def writeSnapshot(fabric: Fabric, path: str) -> None:
    """
    Write a fabric to a file, which is replaced as a whole.

    @raise InvalidRequest: the file cannot be written.
    """
    _write(path, json.dumps(dump(fabric)).encode() + b"\n")


def writeRecording(recording: Recording, path: str) -> None:
    """
    Write a recording to a file, which is replaced as a whole.

    @raise InvalidRequest: the file cannot be written.
    """
    _write(path, gzip.compress(json.dumps(dumpRecording(recording)).encode(), mtime=0))


def _write(path: str, content: bytes) -> None:
    """Replace a file, or write to a device or a pipe, such as that of C{/dev/stdout}."""
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            Path(path).write_bytes(content)
        else:
            _replace(os.path.realpath(path), content)
    except OSError as error:
        raise InvalidRequest(f"snapshot {path}: {reasonText(error)}") from error


def _replace(path: str, content: bytes) -> None:
    part = Path(f"{path}.{token_hex(4)}.part")  # another process may write the same file
    try:
        part.write_bytes(content)
        os.replace(part, path)
    finally:  # also after Ctrl-C
        with suppress(OSError):
            part.unlink()


def parseRecording(text: str) -> Recording | None:
    """
    Return the recording in the text of a snapshot; None if the text is not JSON, but maybe a net file.

    @raise ValueError: it is JSON, but not a snapshot.
    """
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return loadRecording(json.loads(text))
    except RecursionError as error:
        raise ValueError("its tables are nested too deeply") from error
