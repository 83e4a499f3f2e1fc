"""
RDMA devices and ports of the kernel: read, listed, and followed during changes.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from typing import Any, cast, Final

from twisted.internet import reactor as anyReactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.trial.unittest import SynchronousTestCase, TestCase

from txrdma.command import run as runCommand
from txrdma.command import TxrdmaOptions
from txrdma.commands.common.options import IReactor as CommandReactor
from txrdma.error import DeviceUnavailable
from txrdma.iba.types import GID, MTU
from txrdma.iba.verbs import GIDType, LinkLayer, PhysicalState, PortState
from txrdma.ports import devices, getEndPort
from txrdma.ports.following import (
    Change,
    DeviceAdded,
    DeviceRemoved,
    EndPortWatcher,
    PortAdded,
    RDMAPortChanged,
)
from txrdma.ports.network import INetworkReactor
from txrdma.test.system.kernel import Box, OUTSIDE, record, Witness

BOXES = (Box(mtu=4200),)

Reported = dict[str, Any]

NEVER: Final = 10_000.0
"""A polling interval that no test reaches: changes must be reported by netlink."""

PATIENCE: Final = 30.0

reactor = cast(INetworkReactor, anyReactor)

OF_DEVICE: Final[dict[str, Callable[[Reported], object]]] = {
    "transport": lambda output: "iWARP" if output["attributes"]["nodeType"] == "RNIC" else "InfiniBand",
    "fw_ver": lambda output: output["attributes"]["firmware"],
    "node_guid": lambda output: output["attributes"]["nodeGUID"],
    "sys_image_guid": lambda output: output["attributes"]["systemImageGUID"],
    "vendor_id": lambda output: output["attributes"]["vendorID"],
    "vendor_part_id": lambda output: output["attributes"]["vendorPartID"],
    "hw_ver": lambda output: output["attributes"]["hardwareVersion"],
    "atomic_cap": lambda output: f"ATOMIC_{output['attributes']['atomics']}",
    "phys_port_cnt": lambda output: len(output["ports"]),
    "max_mr_size": lambda output: output["limits"]["maxMemoryRegionLength"],
    "max_qp": lambda output: output["limits"]["maxQueuePairs"],
    "max_qp_wr": lambda output: output["limits"]["maxQueuePairRequests"],
    "max_sge": lambda output: output["limits"]["maxSegments"],
    "max_cq": lambda output: output["limits"]["maxCompletionQueues"],
    "max_cqe": lambda output: output["limits"]["maxCompletionQueueDepth"],
    "max_mr": lambda output: output["limits"]["maxMemoryRegions"],
    "max_pd": lambda output: output["limits"]["maxProtectionDomains"],
    "max_ah": lambda output: output["limits"]["maxAddressHandles"],
    "max_qp_rd_atom": lambda output: output["limits"]["maxDestRDAtomic"],
    "max_qp_init_rd_atom": lambda output: output["limits"]["maxRDAtomic"],
    "max_srq": lambda output: output["limits"]["maxSharedReceiveQueues"],
    "max_srq_wr": lambda output: output["limits"]["maxSharedReceiveQueueRequests"],
    "max_srq_sge": lambda output: output["limits"]["maxSharedReceiveQueueSegments"],
}
"""Fields of a device in C{ibv_devinfo -v}, and in C{txrdma devices}."""

OF_PORT: Final[dict[str, Callable[[Reported], object]]] = {
    "state": lambda port: f"PORT_{port['state']}",
    "phys_state": lambda port: port["physicalState"],
    "max_mtu": lambda port: port["maxMTU"],
    "active_mtu": lambda port: port["activeMTU"],
    "sm_lid": lambda port: port["smLID"],
    "sm_sl": lambda port: port["smServiceLevel"],
    "port_lid": lambda port: port["lid"],
    "port_lmc": lambda port: port["lidMask"],
    "link_layer": lambda port: {"ETHERNET": "Ethernet", "INFINIBAND": "InfiniBand"}[port["linkLayer"]],
    "max_msg_sz": lambda port: port["maxMessageLength"],
    "port_cap_flags": lambda port: port["capabilities"],
    "bad_pkey_cntr": lambda port: port["badPKeys"],
    "qkey_viol_cntr": lambda port: port["badQKeys"],
    "pkey_tbl_len": lambda port: port["kernel"]["pkeyTableLength"],
    "gid_tbl_len": lambda port: port["kernel"]["gidTableLength"],
    "active_width": lambda port: f"{port['width']}X",
    "active_speed": lambda port: f"{port['rate'] / port['width'] / 1e9:.1f}",
    "GIDs": lambda port: [(each["index"], f"{each['gid']}, {each['type']}") for each in port["gidTable"]],
}

NOT_OURS: Final = frozenset(
    """
    page_size_cap device_cap_flags device_cap_flags_ex max_sge_rd max_ee_rd_atom max_res_rd_atom
    max_ee_init_rd_atom max_ee max_rdd max_mw max_raw_ipv6_qp max_raw_ethy_qp max_mcast_grp
    max_mcast_qp_attach max_total_mcast_qp_attach max_fmr max_pkeys local_ca_ack_delay num_comp_vectors
    max_tso max_wq_type_rq
    max_rwq_indirection_tables max_rwq_indirection_table_size rx_hash_function rx_hash_fields_mask
    qp_rate_limit_min qp_rate_limit_max port_cap_flags2 max_vl_num subnet_timeout init_type_reply
    """.split()
)
"""Fields of C{ibv_devinfo -v} that txrdma does not have, of features that it does not use."""


def run(*command: str) -> str:
    """Return the output of a command."""
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def number(text: str) -> object:
    """Return a number without its name or code, or a word without its code."""
    word = re.sub(r" \(.*\)$| Gbps.*$", "", text)
    try:
        return int(word, 0)
    except ValueError:
        return word


def devinfo() -> dict[str, Reported]:
    """Return the output of C{ibv_devinfo -v} by device; C{ports} has the ports, each with C{GIDs}."""
    found: dict[str, Reported] = {}
    there: Reported = {}
    for line in run("ibv_devinfo", "-v").splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "hca_id":
            device = there = found[value] = {"ports": []}
        elif key == "port":
            there = {"GIDs": []}
            device["ports"].append(there)
        elif key.startswith("GID["):
            there["GIDs"].append((int(key[4:-1]), value))
        elif value and key != "Unknown flags":  # belongs to the line above
            there[key] = number(value)
    return found


class ReadingTests(SynchronousTestCase):
    """The same values as the tools of rdma-core and iproute2."""

    skip = OUTSIDE
    witness = Witness(
        "txrdma.ports, txrdma devices", "ibv_devinfo, rdma", "every attribute of devices and ports"
    )

    def compare(
        self, described: Reported, reference: Reported, names: dict[str, Callable[[Reported], object]]
    ) -> int:
        unknown = reference.keys() - names.keys() - NOT_OURS - {"ports"}
        self.assertEqual(unknown, set(), "ibv_devinfo prints unknown fields")
        compared = reference.keys() & names.keys()
        for name in sorted(compared):
            self.assertEqual(names[name](described), reference[name], name)
        return len(compared)

    def output(self, *arguments: str) -> str:
        """Return the output of C{txrdma devices}, run in this process: the guest starts processes slowly."""
        options = TxrdmaOptions()
        options.parseOptions(["devices", *arguments])
        out = io.StringIO()
        with redirect_stdout(out):
            self.successResultOf(runCommand(cast(CommandReactor, reactor), options))
        return out.getvalue()

    def test_devinfo(self) -> None:
        """C{txrdma devices --json} equals C{ibv_devinfo -v}, field by field."""
        compared = 0
        reference = devinfo()
        self.assertEqual(set(reference), {"rxe0", "rxe1"})
        output = json.loads(self.output("--json"))
        byName = {each["device"]: each for each in output}
        for name, device in reference.items():
            described = byName[f"pyverbs:{name}"]
            self.assertNotIn("error", described)
            compared += self.compare(described, device, OF_DEVICE)
            self.assertEqual(len(described["ports"]), len(device["ports"]))
            for mine, port in zip(described["ports"], device["ports"], strict=True):
                compared += self.compare(mine, port, OF_PORT)
        self.assertGreaterEqual(compared, 2 * (len(OF_DEVICE) + len(OF_PORT)))
        record("fields", compared)

    def test_withoutPyverbs(self) -> None:
        """Without pyverbs the same is listed as far as sysfs has it, with the reason."""
        command = [sys.executable, "-m", "txrdma", "devices", "--json", "rxe0"]
        bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=200, env=bare)
        [output] = json.loads(done.stdout)
        self.assertIn("pyverbs", output["error"])
        reference = devinfo()["rxe0"]
        self.assertEqual(output["attributes"]["nodeGUID"], reference["node_guid"])
        [mine], [port] = output["ports"], reference["ports"]
        unknown = {"max_mtu", "max_msg_sz", "bad_pkey_cntr", "qkey_viol_cntr"}
        for name in sorted(OF_PORT.keys() - unknown):
            self.assertEqual(OF_PORT[name](mine), port[name], name)
        self.assertEqual({OF_PORT[name](mine) for name in unknown}, {None})

    def test_sysfs(self) -> None:
        """C{txrdma.ports}, which opens no device, equals C{ibv_devinfo}."""
        for name, reference in devinfo().items():
            [device] = [each for each in devices() if each.name == name]
            self.assertEqual(str(device.nodeGUID), reference["node_guid"])
            self.assertEqual(str(device.systemImageGUID), reference["sys_image_guid"])
            [port], [message] = device.ports, reference["ports"]
            self.assertEqual(f"PORT_{port.state.name}", message["state"])
            self.assertEqual(port.physicalState.name, message["phys_state"])
            self.assertEqual((port.lid, port.lidMask), (message["port_lid"], message["port_lmc"]))
            self.assertEqual((port.smLID, port.smServiceLevel), (message["sm_lid"], message["sm_sl"]))
            self.assertEqual(port.capabilities, message["port_cap_flags"])
            self.assertEqual(port.linkLayer, LinkLayer.ETHERNET)
            assert port.activeMTU is not None
            self.assertEqual(port.activeMTU.bytes, message["active_mtu"])
            self.assertEqual(
                (port.gidTableLength, port.pkeyTableLength), (message["gid_tbl_len"], message["pkey_tbl_len"])
            )
            table = [(index, f"{each.gid}, {each.type.value}") for index, each in enumerate(port.gidTable())]
            self.assertEqual(table, message["GIDs"])
            self.assertEqual(
                f"{port.rate.bitsPerSecond / port.rate.width / 1e9:.1f}", message["active_speed"]
            )

    def test_rdmaLink(self) -> None:
        """Ports, their states and interfaces equal C{rdma link}."""
        reference = {
            (each["ifname"], each["port"]): (each["state"], each["physical_state"], each["netdev"])
            for each in json.loads(run("rdma", "-j", "link"))
        }
        described = {
            (device.name, port.number): (port.state.name, port.physicalState.name, port.netdev)
            for device in devices()
            for port in device.ports
        }
        self.assertEqual(described, reference)

    def test_characterDevices(self) -> None:
        """The device files in C{/dev/infiniband} are found."""
        names = set(run("ls", "/dev/infiniband").split())
        for device in devices():
            self.assertIn(device.verbsName, names)
            for port in device.ports:
                self.assertIn(port.madName, names)

    def test_spellings(self) -> None:
        """A port is found by its device, GID, IP address, GUID and interface."""
        for name, address, netdev in (("rxe0", "10.77.0.1", "v0"), ("rxe1", "10.77.0.2", "v1")):
            port = getEndPort(f"{name}/1")
            spellings = [name, f"{name}:1", address, netdev, str(port.guid), *map(str, port.gids())]
            for spelling in spellings:
                self.assertEqual(getEndPort(spelling), port, spelling)
        message = str(self.assertRaises(DeviceUnavailable, getEndPort, "mlx5_0"))
        self.assertIn("rxe0/1 ACTIVE", message)

    def test_verbose(self) -> None:
        """The verbose listing has every GID, address and limit."""
        [reference] = [each for name, each in devinfo().items() if name == "rxe0"]
        text = self.output("--verbose", "rxe0")
        for words in (
            reference["node_guid"],
            str(reference["max_qp"]),
            "10.77.0.1",
            "RoCE v2",
            "v0",
            "LINK_UP",
            "uverbs",
        ):
            self.assertIn(words, text)
        self.assertNotIn("10.77.0.2", text)


class FollowingTests(TestCase):
    """Changes in the kernel are reported by netlink, without the slow poll."""

    skip = OUTSIDE
    witness = Witness(
        "txrdma.ports.following", "rxe, netlink", "devices, addresses and links that come and go"
    )
    timeout = 200

    def setUp(self) -> None:
        self.output: list[Change] = []
        self.watcher = EndPortWatcher(reactor, self.changesReceived, interval=NEVER)
        self.watcher.start()
        self.addCleanup(self.watcher.stop)

    def changesReceived(self, changes: Sequence[Change]) -> None:
        self.output.extend(changes)

    async def until(self, what: str, isReported: Callable[[Change], bool]) -> Change:
        """Wait for a change of a kind, and drop earlier ones."""
        end = reactor.seconds() + PATIENCE
        while True:
            for index, change in enumerate(self.output):
                if isReported(change):
                    del self.output[: index + 1]
                    return change
            if reactor.seconds() > end:
                self.fail(f"{what} was not reported; but {self.output}")
            await deferLater(reactor, 0.05)

    async def changed(
        self, device: str, attribute: str, isReported: Callable[[Any], bool]
    ) -> RDMAPortChanged:
        change = await self.until(
            f"{device} {attribute}",
            lambda change: (
                isinstance(change, RDMAPortChanged)
                and (change.device, change.port, change.attribute) == (device, 1, attribute)
                and isReported(change.after)
            ),
        )
        assert isinstance(change, RDMAPortChanged)
        return change

    def test_device(self) -> Deferred[None]:
        """A deleted device is reported as removed, a new one as added with its port."""

        async def steps() -> None:
            began = reactor.seconds()
            run("rdma", "link", "delete", "rxe1")
            self.addCleanup(self.restore)
            await self.until("that rxe1 is gone", lambda change: change == DeviceRemoved("rxe1"))
            record("removal reported after s", round(reactor.seconds() - began, 2))
            self.assertNotIn("rxe1", [device.name for device in devices()])
            run("rdma", "link", "add", "rxe1", "type", "rxe", "netdev", "v1")
            await self.until("that rxe1 is there", lambda change: change == DeviceAdded("rxe1"))
            added = await self.until("its port", lambda change: isinstance(change, PortAdded))
            assert isinstance(added, PortAdded)
            self.assertEqual((added.device, added.port, added.attributes.netdev), ("rxe1", 1, "v1"))

        return Deferred.fromCoroutine(steps())

    def restore(self) -> None:
        if "rxe1" not in run("rdma", "link"):
            run("rdma", "link", "add", "rxe1", "type", "rxe", "netdev", "v1")

    def test_address(self) -> Deferred[None]:
        """A new address adds a GID with type and interface; a removed one removes it."""
        gid = GID.fromIP("10.88.0.1")

        async def steps() -> None:
            run("ip", "addr", "add", "10.88.0.1/24", "dev", "v0")
            added = await self.changed(
                "rxe0", "gidTable", lambda table: any(each.gid == gid for each in table)
            )
            [entry] = [each for each in added.after if each.gid == gid]
            self.assertEqual((entry.type, entry.netdev), (GIDType.ROCE_V2, "v0"))
            self.assertEqual(getEndPort("10.88.0.1").name, "rxe0/1")
            run("ip", "addr", "del", "10.88.0.1/24", "dev", "v0")
            await self.changed("rxe0", "gidTable", lambda table: all(each.gid != gid for each in table))

        return Deferred.fromCoroutine(steps())

    def test_link(self) -> Deferred[None]:
        """A link that goes down or up changes the ports of both ends."""

        async def steps() -> None:
            run("ip", "link", "set", "v1", "down")
            self.addCleanup(run, "ip", "link", "set", "v1", "up")
            down = await self.changed("rxe0", "state", lambda state: state == PortState.DOWN)
            self.assertEqual(down.before, PortState.ACTIVE)
            self.assertEqual(getEndPort("rxe0").physicalState, PhysicalState.POLLING)
            run("ip", "link", "set", "v1", "up")
            await self.changed("rxe0", "state", lambda state: state == PortState.ACTIVE)

        return Deferred.fromCoroutine(steps())

    def test_mtu(self) -> Deferred[None]:
        """A changed MTU of an interface changes the active MTU, as in C{ibv_devinfo}."""

        async def steps() -> None:
            run("ip", "link", "set", "v0", "mtu", "1500")
            self.addCleanup(run, "ip", "link", "set", "v0", "mtu", "4200")
            await self.changed("rxe0", "activeMTU", lambda mtu: mtu == MTU.MTU_1024)
            self.assertEqual(devinfo()["rxe0"]["ports"][0]["active_mtu"], 1024)

        return Deferred.fromCoroutine(steps())
