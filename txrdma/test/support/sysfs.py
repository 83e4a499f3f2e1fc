"""
Trees in a folder that imitate sysfs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from txrdma.test.support import VECTORS

RECORDED = VECTORS / "sysfs-rxe.json"
"""An rxe device on Linux 6.12: its files and their contents; tables are cut after 8 entries."""

NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"

INFINIBAND: Mapping[str, str] = {
    "cap_mask": "0x2651e848",
    "lid": "0x7",
    "lid_mask_count": "1",
    "link_layer": "InfiniBand",
    "phys_state": "5: LinkUp",
    "rate": "100 Gb/sec (4X EDR)",
    "sm_lid": "0x1",
    "sm_sl": "3",
    "state": "4: ACTIVE",
    "counters/symbol_error": "12",
    "counters/port_rcv_data": "18446744073709551615",
    "counters/port_xmit_wait": "N/A (no PMA)",
    "hw_counters/out_of_sequence": "3",
}
"""An active port of InfiniBand."""

ROCE: Mapping[str, str] = {
    **INFINIBAND,
    "cap_mask": "0x04010000",
    "lid": "0x0",
    "lid_mask_count": "0",
    "link_layer": "Ethernet",
    "rate": "25 Gb/sec (1X EDR)",
    "sm_lid": "0x0",
    "sm_sl": "0",
}
"""An active port of RoCE."""

MLX5: Mapping[str, str] = {
    "board_id": "MT_0000000010",
    "fw_ver": "16.35.2000",
    "hca_type": "MT4119",
    "hw_rev": "0x10",
    "node_desc": "host7 mlx5_0",
    "node_guid": "b859:9f03:0012:3456",
    "node_type": "1: CA",
    "sys_image_guid": "b859:9f03:0012:3450",
}
"""A device of the driver mlx5."""

SIW: Mapping[str, str] = {
    "fw_ver": "",
    "node_desc": "",
    "node_guid": "0250:b6ff:fea1:9d61",
    "node_type": "4: RNIC",
    "sys_image_guid": "0250:b6ff:fea1:9d61",
}
"""A device of the driver siw: iWARP."""


class SysFS:
    """
    A fake C{/sys}.

    @ivar root: its path.
    """

    def __init__(self, root: str) -> None:
        self.root = Path(root)
        (self.root / "class" / "infiniband").mkdir(parents=True)

    def write(self, path: str, text: str) -> None:
        """Write one file, named relative to the root."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    def remove(self, path: str) -> None:
        """Remove a file or a whole folder."""
        place = self.root / path
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink()

    def device(self, name: str, files: Mapping[str, str] = MLX5) -> None:
        for file, text in files.items():
            self.write(f"class/infiniband/{name}/{file}", text)

    def port(
        self,
        device: str,
        number: int,
        files: Mapping[str, str] = INFINIBAND,
        gids: Sequence[tuple[str, str, str] | None] = (),
        pkeys: Sequence[str] = ("0xffff", "0x0000"),
    ) -> None:
        """@param gids: the text, the type and the network interface of each, or None."""
        base = f"class/infiniband/{device}/ports/{number}"
        for file, text in files.items():
            self.write(f"{base}/{file}", text)
        for index, gid in enumerate([*gids, None]):
            self.write(f"{base}/gids/{index}", gid[0] if gid else NO_GID)
            if gid:
                self.write(f"{base}/gid_attrs/types/{index}", gid[1])
                if gid[2]:
                    self.write(f"{base}/gid_attrs/ndevs/{index}", gid[2])
        for index, pkey in enumerate(pkeys):
            self.write(f"{base}/pkeys/{index}", pkey)

    def netdev(self, name: str, mtu: int = 1500, address: str = "02:00:00:00:00:01") -> None:
        self.write(f"class/net/{name}/mtu", str(mtu))
        self.write(f"class/net/{name}/address", address)

    def characterDevice(self, name: str, device: str, port: int | None = None) -> None:
        """Create C{uverbs0}, C{umad0} or C{issm0}."""
        kind = "infiniband_verbs" if name.startswith("uverbs") else "infiniband_mad"
        self.write(f"class/{kind}/{name}/ibdev", device)
        self.write(f"class/{kind}/abi_version", "5")
        if port is not None:
            self.write(f"class/{kind}/{name}/port", str(port))

    def recorded(self) -> None:
        """Create the recorded rxe device; files that could not be read are missing."""
        for folder, files in json.loads(RECORDED.read_text()).items():
            for name, text in files.items():
                if isinstance(text, str):
                    self.write(f"class/{folder}/{name}", text.removesuffix("\n"))
