"""C{txrdma smpquery}, C{saquery}, C{sminfo} and C{query}."""

from __future__ import annotations

import io
import sys

from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from txrdma.command import TxrdmaOptions
from txrdma.commands import saquery, smpquery
from txrdma.commands.common.attributefields import assigned, attributeNamed, attributesOf, kindNamed, queried
from txrdma.error import InvalidRequest
from txrdma.iba.types import GID, GUID
from txrdma.iba.verbs import NodeType
from txrdma.kit.rawfields import poke
from txrdma.mad import ports
from txrdma.mad.layouts.attributes import allAttributes, RPCS
from txrdma.mad.layouts.messages import Notice
from txrdma.mad.layouts.sa import GUIDInfoRecord, MCMemberRecord, NodeRecord, Record, ServiceRecord
from txrdma.mad.layouts.smp import NodeInfo, PKeyTable, PortInfo, SMInfo, SwitchInfo
from txrdma.mad.layouts.values import SMState
from txrdma.test.support.mad.commanding import CommandTestCase, SharedFabricTestCase, Terminal


class SMPQueryTests(SharedFabricTestCase):
    def test_attributes(self) -> None:
        for name, target, field, value in (
            ("NodeInfo", "9", "numPorts", "36"),
            ("ni", "1", "nodeType", "CHANNEL_ADAPTER (1)"),
            ("ND", "9", "nodeString", "leaf0000"),
            ("PI", "1", "portState", "ACTIVE (4)"),
            ("SI", "0,1", "linearFDBTop", "9"),
            ("SMI", "8", "smState", "MASTER (3)"),
            ("MEPI", "1", "linkSpeedActive", "0x00"),
        ):
            self.assertEqual(self.output("smpquery", name, target).fields[field], value, name)

    def test_tables(self) -> None:
        for name, target, port, modifiers in (
            ("PKeys", "1", "0", [0, 1]),
            ("PKeys", "9", "2", [2 << 16, 2 << 16 | 1]),
            ("SL2VL", "1", "0", [0]),
            ("SL2VL", "9", "2", [source << 8 | 2 for source in range(37)]),
            ("VLArb", "1", "0", [1 << 16, 3 << 16]),
            ("GI", "1", "0", [0, 1, 2, 3]),
            ("LFT", "9", "0", [0]),
        ):
            reported = self.output("smpquery", name, target, port, "--json").json["answers"]
            self.assertEqual([answer["modifier"] for answer in reported], modifiers, name)

    def test_multicastTable(self) -> None:
        setting = ("query", "SubnSet", "MulticastForwardingTable", "9", "--yes", "--modifier")
        masks = ",".join(["0", "0x24"])
        self.assertEqual(self.output(*setting, "0", f"portMasks={masks}").status, None)
        self.assertEqual(self.output(*setting, str(1 << 28), "portMasks=0,1").status, None)
        self.assertIn("0xc001  2,5,16", self.output("smpquery", "MFT", "9").out)

    def test_modifier(self) -> None:
        reported = self.output("smpquery", "GI", "1", "--modifier", "2", "--json").json
        self.assertEqual([answer["modifier"] for answer in reported["answers"]], [2])

    def test_mistakes(self) -> None:
        for arguments, words in (
            (["XY"], "there are NodeInfo"),
            (["PI", "1", "x"], "port x"),
            (["PI", "1", "256"], "255 at most"),
        ):
            error = self.assertRaises(UsageError, TxrdmaOptions().parseOptions, ["smpquery", *arguments])
            self.assertIn(words, str(error))
        words = "txrdma smpquery: lid 9 has 36 ports, and no port 99"
        self.assertEqual(self.output("smpquery", "PI", "9", "99").status, words)

    def test_combined(self) -> None:
        for target in ("9 0,3", "lid 9 DR 0,3", "0x9 0,3"):
            self.assertEqual(self.output("smpquery", "ND", target).fields["nodeString"], "h00002", target)
        self.assertEqual(self.output("perfquery", "9 0,3").fields["portSelect"], "1")
        self.assertIn(
            "LID", str(self.output("smpquery", "NI", "9 0,3", device="sim:fattree:8:managed=no").status)
        )

    def test_extended(self) -> None:
        reported = self.output("smpquery", "PI", "9", "3", "-x", "--json").json["answers"]
        self.assertEqual([answer["modifier"] for answer in reported], [1 << 31 | 3])
        reported = self.output("smpquery", "PIE", "9", "3", "--debug").errors
        self.assertIn("GET PortInfoExtended modifier 0x3 ", reported)

    def test_address(self) -> None:
        self.assertEqual(
            self.output("smpquery", "addr", "3").out, "GID fe80::10:5 LID start 0x3 end 0x3 'h00002'\n"
        )
        reported = self.output("smpquery", "Address", "DR 0,1", "--json").json
        self.assertEqual((reported["lid"], reported["lastLID"], reported["name"]), (9, 9, "leaf0000"))
        self.assertEqual(reported["gid"], "fe80::20:0")

    def test_named(self) -> None:
        names = self.mktemp()
        with open(names, "w") as file:
            file.write('0x200000 "leaf of all"\n')
        map = ("--node-names", names)
        self.assertIn("# NodeInfo: lid 9 (leaf of all)\n", self.output("smpquery", "NI", "9", *map).out)
        self.assertEqual(self.output("smpquery", "NI", "9", "--json", *map).json["name"], "leaf of all")
        self.assertNotIn("name", self.output("smpquery", "NI", "1", "--json", *map).json)
        self.assertIn("# NodeRecord (leaf of all)\n", self.output("saquery", "NR", "9", *map).out)
        self.assertEqual(self.output("saquery", "NR", "9", "--json", *map).json[0]["name"], "leaf of all")
        output = self.output("saquery", "LFTR", "9", "--columns", "lid,blockNum,name", *map).out
        self.assertIn("9    0         leaf of all\n", output)

    def test_inherited(self) -> None:

        class Undeclared(Notice):
            pass

        self.assertNotIn(Undeclared, set(attributesOf(RPCS["SubnGet"])))
        self.assertIn(Notice, set(attributesOf(RPCS["SubnGet"])))

    def test_complete(self) -> None:
        carried = {kind.__name__ for kind in attributesOf(RPCS["SubnGet"])} - {"Notice"}
        self.assertEqual({kind.attribute.__name__ for kind in smpquery.KINDS}, carried)
        for name in "NodeDesc PKeyTable SL2VLTable VLArbitration GUIDInfo MlnxExtPortInfo".split():
            TxrdmaOptions().parseOptions(["smpquery", name, "0,1"])  # names in infiniband-diags


class ArgumentTests(SynchronousTestCase):
    def test_wrongNumber(self) -> None:
        """Too many or too few arguments are refused with those that the command expects."""
        for arguments, expected in (
            (("query", "SubnGet"), "expected RPC ATTRIBUTE [TARGET] [FIELD=VALUE...]"),
            (("nodes", "1", "2"), "expected [TARGET]"),
            (("sminfo", "1", "2"), "expected [TARGET]"),
            (("diff",), "expected BEFORE [AFTER]"),
            (("check", "1"), "expected no arguments"),
        ):
            error = self.assertRaises(UsageError, TxrdmaOptions().parseOptions, list(arguments))
            self.assertEqual(str(error), expected)


class SAQueryTests(SharedFabricTestCase):
    def test_components(self) -> None:
        """Records are selected by any of their components, regardless of case."""
        for arguments, field, values in (
            (("NodeRecord", "nodeType=2"), "lid", [9]),
            (("NR", "nodetype=switch"), "lid", [9]),
            (("NR", "nodeString=h00003"), "lid", [4]),
            (("NR", "nodeInfo.nodeGUID=0x100006"), "lid", [4]),
            (("lid=4",), "lid", [4]),
            (("NR", "4"), "lid", [4]),
            (("PIR", "9/3"), "portNum", [3]),
            (("PathRecord", "dlid=4", "slid=1"), "dlid", [4]),
            (("PR", "1/4"), "dlid", [4]),
            (("PR", "dlid=5"), "slid", [1]),
            (("LR", "9/2"), "toLID", [2]),
            (("SMIR",), "lid", [8]),
            (("LFTR", "9/0"), "blockNum", [0]),
            (("NR", "lid=77"), "lid", []),
            (("GIR", "lid=1", "guids[0]=0x100001"), "blockNum", [0]),
        ):
            reported = self.output("saquery", *arguments, "--json").json
            self.assertEqual([each["fields"][field] for each in reported], values, arguments)

    def test_singleElement(self) -> None:
        """An element of a component that has one bit for all its elements cannot be selected."""
        status = self.output("saquery", "NR", "nodeString[3]=65").status
        self.assertIn("nodeString as a whole", str(status))

    def test_texts(self) -> None:
        self.assertEqual(self.output("saquery", "NR").out.count("# NodeRecord"), 9)
        table = self.output("saquery", "NR", "nodeType=2", "--columns", "lid,nodeString").out
        self.assertIn("nodeString", table)
        self.assertIn("leaf0000", table)
        self.assertNotIn("numPorts", table)
        self.assertIn("portGUID", self.output("saquery", "NR", "--table").out)
        self.assertIn("no component foo", str(self.output("saquery", "NR", "--columns", "foo").status))
        nothing = self.output("saquery", "NR", "lid=77")
        self.assertEqual((nothing.out, nothing.status), ("no records\n", None))

    def test_views(self) -> None:
        self.assertEqual(self.output("saquery", "list").out.splitlines()[1:3], ["1    h00000", "2    h00001"])
        reported = self.output("saquery", "sms", "--json").json
        self.assertEqual([each["fields"]["endPortLID"] for each in reported], [8])
        self.assertIn("0xc000", self.output("saquery", "groups").out)
        joining = ("mgid=ff12:401b:ffff::ffff:ffff", "portGID=fe80::10:1", "joinState=1", "--set", "--yes")
        self.output("saquery", "MCMR", *joining)
        output = self.output("saquery", "members", "mlid=0xc000", "--smkey", "1").out
        self.assertRegex(output, r"0xc000 +fe80::10:1 +1 +h00000\n")

    def test_ends(self) -> None:
        for source, target in (("3", "4"), ("h00002", "h00003"), ("DR 0,1,3", "0x0000000000100007")):
            [reported] = self.output("saquery", "PR", "--from", source, "--to", target, "--json").json
            self.assertEqual((reported["fields"]["slid"], reported["fields"]["dlid"]), (3, 4))
        [reported] = self.output("saquery", "PR", "--to", "4", "--json").json
        self.assertEqual((reported["fields"]["slid"], reported["fields"]["dlid"]), (1, 4))
        reported = self.output("saquery", "PR", "dlid=4", "--as-said", "--json").json
        self.assertEqual(len(reported), 9)
        error = self.assertRaises(UsageError, TxrdmaOptions().parseOptions, ["saquery", "NR", "--to", "4"])
        self.assertIn("for PathRecord", str(error))

    def test_trace(self) -> None:
        for words in (("TR", "2/4"), ("TraceRecord", "--from", "2", "--to", "h00003")):
            reported = self.output("saquery", *words, "--json").json
            ports = [(each["fields"]["entryPort"], each["fields"]["exitPort"]) for each in reported]
            self.assertEqual(ports, [(0, 1), (2, 4), (1, 0)], words)

    def test_several(self) -> None:
        output = self.output(
            "saquery", "MPR", "--from", "1", "--from", "h00001", "--to", "fe80::10:7", "--json"
        )
        reported = [(each["fields"]["slid"], each["fields"]["dlid"]) for each in output.json]
        self.assertEqual(reported, [(1, 4), (2, 4)])
        output = self.output("saquery", "MPR", "--from", "1", "--to", "4", "numbPath=1", "--debug", "--debug")
        self.assertIn("MultiPathRecord.numbPath 1\n", output.errors)
        self.assertIn("MultiPathRecord.sgidCount 1\n", output.errors)
        for words in (["MPR", "--from", "1"], ["PR", "--to", "1", "--to", "2"]):
            self.assertRaises(UsageError, TxrdmaOptions().parseOptions, ["saquery", *words])

    def test_selectors(self) -> None:
        words = ("saquery", "PR", "1/4", "--debug", "--debug")
        output = self.output(*words, "mtu=MTU_2048").errors
        self.assertIn("PathRecord.mtuSelector EXACTLY", output.partition("<-")[0])
        output = self.output(*words, "mtu=MTU_2048", "mtuSelector=greater").errors
        self.assertIn("PathRecord.mtuSelector GREATER", output.partition("<-")[0])

    def test_modifier(self) -> None:
        for words, many in (((), 0), (("--modifier", "0x80000000"), 1)):
            reported = self.output("saquery", "PIR", "capabilityMask=0x2", "--json", *words).json
            self.assertEqual(len(reported), many)

    def test_get(self) -> None:
        self.assertEqual(len(self.output("saquery", "NR", "4", "--get", "--json").json), 1)
        self.assertIn("too many records", str(self.output("saquery", "NR", "--get").status))

    def test_setAndDelete(self) -> None:
        joining = ("saquery", "MCMR", "mgid=ff12:401b:ffff::ffff:ffff", "portGID=fe80::10:1", "joinState=1")
        self.patch(sys, "stdin", io.StringIO())
        self.assertIn("--yes", str(self.output(*joining, "--set").status))
        self.assertEqual(self.output(*joining, "--set", "--yes").status, None)
        members = self.output("saquery", "MCMR", "portGID=fe80::10:1", "--json", "--smkey", "1").json
        self.assertEqual([each["fields"]["joinState"] for each in members], [1])
        self.assertEqual(self.output(*joining, "--delete", "--yes").status, None)
        self.assertEqual(self.output("saquery", "MCMR", "portGID=fe80::10:1", "--json").json, [])
        self.assertIn("is not for SubnAdmSet", str(self.output("saquery", "NR", "--set").status))

    def test_mistakes(self) -> None:
        for arguments, words in ((["XY"], "there are ClassPortInfo"), (["NR", "1/2"], "takes lid")):
            error = self.assertRaises(UsageError, TxrdmaOptions().parseOptions, ["saquery", *arguments])
            self.assertIn(words, str(error))
        self.assertIn("no component foo", str(self.output("saquery", "NR", "foo=1").status))
        self.assertIn("16 bits", str(self.output("saquery", "NR", "lid=70000").status))

    def test_complete(self) -> None:
        records = {kind for kind in allAttributes().values() if issubclass(kind, Record)}
        known = {kind.attribute for kind in saquery.KINDS}
        self.assertEqual({kind for kind in known if issubclass(kind, Record)}, records)
        names = "CPI NR PIR SL2VL PKTR VLAR IIR LR SR PR MCMR LFTR MFTR GIR SWIR SMIR".split()
        self.assertEqual([name for name in names if kindNamed(saquery.KINDS, name) is None], [])


class SMInfoTests(CommandTestCase):
    def test_json(self) -> None:
        reported = self.output("sminfo", "8", "--json").json
        self.assertEqual(list(reported), ["path", "guid", "smKey", "actCount", "priority", "smState"])

    def test_nobody(self) -> None:
        self.assertIn("txrdma sminfo: lid 2: ", str(self.output("sminfo", "2", "-t", "0.1").status))

    def test_control(self) -> None:
        self.patch(sys, "stdin", io.StringIO())
        self.assertIn("--yes", str(self.output("sminfo", "--control", "standby").status))
        self.assertRaises(UsageError, TxrdmaOptions().parseOptions, ["sminfo", "--control", "explode"])
        for number, name in enumerate(("handover", "acknowledge", "disable", "standby", "discover"), 1):
            sent = self.output("sminfo", "--control", name, "--yes", "--debug").errors
            self.assertIn(f"SET SMInfo modifier {number:#x} ", sent)


class QueryTests(SharedFabricTestCase):
    def test_numbers(self) -> None:
        output = self.output("query", "SubnGet", "0x11", "3").out.splitlines()
        self.assertEqual((output[0], len(output)), ("# Attribute_0x0011", 5))
        self.assertTrue(output[1].startswith("0x0000  01010101 "))
        info = bytes.fromhex("".join(line.partition("  ")[2] for line in output[1:]).replace(" ", ""))
        self.assertEqual(NodeInfo.decode(info).nodeGUID.raw.hex(), "0000000000100004")
        self.assertIn("not supported", str(self.output("query", "SubnGet", "0xff77", "3").status))
        vendor = "--class", "0x32", "--oui", "0x1405"
        sent = self.output("query", "VendGet", "0x10", "3", *vendor, "--debug", "--debug").errors
        self.assertIn("header.managementClass VENDOR_OPENIB_PING (50)\n", sent)
        self.assertIn("    oui 0x001405\n", sent)
        reported = self.output("query", "PerformanceGet", "0x12", "3", "content=0x0001", "--json").json
        self.assertEqual(reported["fields"]["content"][:4], "0001")
        self.assertIn("0 to 0xffff", str(self.output("query", "SubnGet", "0x10000", "3").status))
        self.assertIn("there is no attribute XY", str(self.output("query", "SubnGet", "XY", "3").status))

    def test_elements(self) -> None:
        before = self.output("query", "SubnGet", "PKeyTable", "2", "--json").json["fields"]["pkeys"]
        output = self.output(
            "query", "SubnSet", "PKeyTable", "2", "pkeys[5]=0x8005", "--change", "--yes", "--json"
        )
        self.assertEqual(output.json["fields"]["pkeys"], [*before[:5], 0x8005, *before[6:]])
        self.output("query", "SubnSet", "LinearForwardingTable", "9", "ports[60]=7", "--change", "--yes")
        ports = self.output("query", "SubnGet", "LinearForwardingTable", "9", "--json").json["fields"][
            "ports"
        ]
        self.assertEqual((ports[120:122], ports[2:4]), ("07", "01"))
        for name in ("pkeys[32]=1", "pkeys[1]=70000", "lids[1]=1"):
            self.assertIn(
                "txrdma query: ", str(self.output("query", "SubnSet", "PKeyTable", "2", name).status)
            )

    def test_confirmation(self) -> None:
        self.patch(sys, "stdin", io.StringIO())
        output = self.output("query", "PerformanceSet", "PortCounters", "9", "portSelect=1")
        words = "PerformanceSet PortCounters to lid 9: this changes the fabric; use --yes"
        self.assertEqual(output.status, words)

    def test_change(self) -> None:
        """Fields that are not given stay as the node has them after the prompt."""
        switch = self.fabric.node("leaf0000")

        class Slow(Terminal):
            def readline(self, size: int = -1, /) -> str:  # type: ignore[override]  # text of a terminal
                poke(SwitchInfo, "defaultPort")(switch.switchInfo, 7)
                return "y\n"

        self.patch(sys, "stdin", Slow())
        words = ("query", "SubnSet", "SwitchInfo", "9", "lifeTimeValue=5", "--change", "--json")
        fields = self.output(*words).json["fields"]
        self.assertEqual((fields["lifeTimeValue"], fields["defaultPort"]), (5, 7))
        sent = self.output(*words, "--sa", "--yes", "--debug").errors
        self.assertIn("GET SwitchInfo", sent)
        self.assertNotIn("SwitchInfoRecord", sent)

    def test_changePort(self) -> None:
        """Counters of the selected port are changed, by its own present values."""
        self.fabric.setCounters("leaf0000", 3, portXmitDiscards=7)
        words = ("query", "PerformanceSet", "PortCounters", "9", "portSelect=3", "--change", "--yes")
        sent = self.output(*words, "--debug", "--debug").errors
        self.assertNotIn("portSelect 0\n", sent)
        self.assertIn("portXmitDiscards 7\n", sent)

    def test_otherNode(self) -> None:
        """Nothing is sent to a node that got the LID while the prompt waited."""

        class Slow(Terminal):
            def readline(self, size: int = -1, /) -> str:  # type: ignore[override]  # text of a terminal
                for name in ("h00001", "h00007"):
                    fabric.node(name).setGUID(GUID.fromInt(int(fabric.node(name).guid) + 0x7700))
                return "y\n"

        fabric = self.fabric
        for words in (
            ("query", "SubnSet", "PKeyTable", "2", "pkeys[5]=0x8005", "--change"),
            ("sminfo", "--control", "standby"),
        ):
            self.patch(sys, "stdin", Slow())
            output = self.output(*words, "--debug")
            self.assertIn("another node, or none, is at lid", str(output.status))
            self.assertNotIn(" SET ", output.errors)

    def test_mistakes(self) -> None:
        for arguments, words in (
            (("SubnAsk", "NodeInfo"), "SubnGet"),
            (("SubnGet", "NodeRecord"), "NodeInfo"),
            (("SubnSet", "PortInfo", "1", "foo=1"), "vlHighLimit"),
            (("SubnSet", "SMInfo", "1", "smState=ASLEEP"), "MASTER"),
        ):
            self.assertIn(words, str(self.output("query", *arguments).status))
        self.assertRaises(UsageError, TxrdmaOptions().parseOptions, ["query", "SubnGet"])


class FieldsTests(SynchronousTestCase):
    def test_values(self) -> None:
        reported = assigned(attributeNamed("SMInfo"), [("smstate", "standby"), ("priority", "7")])
        self.assertEqual(reported, SMInfo(smState=SMState.STANDBY, priority=7))
        pairs = [("serviceGID", "fe80::1"), ("serviceName", "x"), ("data16", "1,0x2")]
        record = assigned(ServiceRecord, pairs)
        assert isinstance(record, ServiceRecord)
        self.assertEqual(record.serviceGID, GID.fromString("fe80::1"))
        self.assertEqual(record.serviceName, b"x".ljust(64, b"\0"))
        self.assertEqual(record.data16, (1, 2, 0, 0, 0, 0, 0, 0))
        info = assigned(PortInfo, [("lid", "0x11"), ("clientReregister", "yes")])
        assert isinstance(info, PortInfo)
        self.assertEqual((info.lid, info.clientReregister), (17, True))

    def test_flags(self) -> None:
        """Fields whose bits have names take a number, or names."""
        pairs = [("linkWidthEnabled", "X1,x4"), ("capabilityMask", "SM"), ("linkSpeedEnabled", "0x3")]
        info = assigned(PortInfo, pairs)
        assert isinstance(info, PortInfo)
        self.assertEqual((info.linkWidthEnabled, info.capabilityMask, info.linkSpeedEnabled), (3, 2, 3))
        error = self.assertRaises(InvalidRequest, assigned, PortInfo, [("linkWidthEnabled", "X1,X3")])
        self.assertIn("linkWidthEnabled=X1,X3 does not fit into 8 bits, or some of X1,X4", str(error))

    def test_inner(self) -> None:
        for name in ("nodeInfo.nodeType", "nodeType"):
            record = assigned(NodeRecord, [(name, "2")])
            assert isinstance(record, NodeRecord)
            self.assertEqual(record.nodeInfo.nodeType, NodeType.SWITCH)

    def test_query(self) -> None:
        self.assertEqual(queried(NodeRecord, [("lid", "1"), ("nodeInfo.nodeType", "1")]).mask, 0b10001)
        self.assertEqual(queried(MCMemberRecord, []).mask, 0)

    def test_parts(self) -> None:
        query = queried(GUIDInfoRecord, [("lid", "3"), ("guids[1]", "0x1234"), ("guidInfo.guids[3]", "5")])
        whole = queried(GUIDInfoRecord, [("guids", "0")]).mask
        first = whole & -whole
        self.assertEqual(query.mask, 1 | first << 1 | first << 3)
        self.assertEqual([int(guid) for guid in query.record.guidInfo.guids], [0, 0x1234, 0, 5, 0, 0, 0, 0])

    def test_refused(self) -> None:
        for kind, name, text in (
            (PortInfo, "lid", "65536"),
            (PortInfo, "lid", "-1"),
            (PortInfo, "lid", "x"),
            (PortInfo, "reserved", "0"),
            (PKeyTable, "pkeys", ",".join("0" * 33)),
            (ServiceRecord, "serviceName", "x" * 65),
            (ServiceRecord, "serviceGID", "nowhere"),
            (PortInfo, "clientReregister", "perhaps"),
            (PortInfo, "portState", "16"),
            (NodeRecord, "nodeDescription", "7"),
        ):
            error = self.assertRaises(InvalidRequest, assigned, kind, [(name, text)])
            self.assertIn(name, str(error))


class CommandLineTests(CommandTestCase):
    def refused(self, *words: str) -> str:
        return str(self.assertRaises(UsageError, TxrdmaOptions().parseOptions, words))

    def test_values(self) -> None:
        self.assertEqual(
            self.refused("smpquery", "NI", "3", "--timeout", "x"),
            "--timeout x: expected 0.001 to 3600 seconds",
        )
        self.assertEqual(self.refused("smpquery", "NI", "-mz"), "--modifier z: expected a number, 0 or more")
        self.assertEqual(self.refused("smpquery", "NI", "3", "--foo"), "option --foo not recognized")

    def test_help(self) -> None:
        text = str(saquery.CommandOptions())
        self.assertNotIn("[default: ]", text)
        self.assertEqual(text.count("[default: the first]"), 1)
        self.assertIn("  NodeRecord ", text)

    def test_noPort(self) -> None:
        """A check run by cron does not report the health of a simulated fabric if there is no adapter."""
        self.patch(ports, "availableMADPorts", lambda: ["sim", "vmad:soft"])
        for command, *arguments in (("check",), ("smpquery", "NI")):
            output = self.output(command, *arguments, device="")
            self.assertIn("no management port can be opened", f"{output.errors}{output.status}", command)
            self.assertNotIn(output.status, (None, 0), command)
