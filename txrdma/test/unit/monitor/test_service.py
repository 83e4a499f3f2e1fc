"""The configuration of the monitor's service, and its metrics page."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

from twisted.application.service import IServiceMaker
from twisted.internet.defer import maybeDeferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent, LogLevel
from twisted.plugin import getPlugins
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

import txrdma
from txrdma.commands.common.rehearsalfile import readRehearsal
from txrdma.error import InvalidRequest
from txrdma.fabric.advice import Severity
from txrdma.fabric.cableplan import readCables
from txrdma.fabric.health import Finding
from txrdma.fabric.metricnames import METRICS
from txrdma.iba.types import GUID
from txrdma.kit.remotesender import RemoteSender
from txrdma.kit.spool import BLOCK_OCTETS, Spool
from txrdma.monitor.config import parseConfig, readConfig
from txrdma.monitor.diagnosis.findinglog import Action
from txrdma.monitor.diagnosis.tallies import TallyLimit
from txrdma.monitor.diagnosis.thresholds import DEFAULT_LIMITS
from txrdma.monitor.events.alerts import WeeklyTime
from txrdma.monitor.reading.settings import PollerSettings
from txrdma.monitor.series.exposition import exposed
from txrdma.monitor.series.level import DEFAULT_LEVELS, EVENTS
from txrdma.monitor.series.remotewriter import RemoteWriter
from txrdma.monitor.web.metrics import Metrics, MOST_FINDINGS
from txrdma.monitor.web.watch import Watch
from txrdma.tap.fabricmonitor import Options
from txrdma.tap.monitor import collectorsOf
from txrdma.test.support.httpagents import PreparedAgent
from txrdma.test.support.monitor.service import WHOLE
from txrdma.test.unit.monitor.test_exposition import parsed, Samples
from txrdma.test.unit.monitor.test_poller import PollerTestCase

WRONG = """
prot = "umad:"
port = 7

[poll]
interval = "often"
outstanding = 0
settle = inf

[web]
listen = "tcp:9315"

[findings]
ignored = ["nonsense"]

[findings.severity]
width = "awful"
"silly" = "info"

[limits.NoCounter]
most = 7

[history]
file = "history.db"
url = "postgresql://host/fabric"

[alerts.mail]
host = "mail.example.org"
to = "ops"

[alerts.webhooks.ours]
format = "pigeon"

[alerts.silences.works]
until = "tomorrow"

[limits.VL15Dropped]
least = 1
most = -1
"""


class ConfigTests(SynchronousTestCase):
    def test_usual(self) -> None:
        """An empty file is the default configuration: on loopback, without a history."""
        config = parseConfig("")
        self.assertEqual((config.port, config.history, config.limits), ("", "", DEFAULT_LIMITS))
        self.assertEqual((config.settings, config.counters), (PollerSettings(), METRICS))
        self.assertIn("127.0.0.1", config.listen)

    def test_windows(self) -> None:
        """Silences can recur, and end."""
        head = "[alerts.silences.works]"
        lines = f'{head}\ntimes = ["tue 22:00-04:00", "daily 12:00-12:30"]'
        (silence,) = parseConfig(lines).alerts.silences
        self.assertEqual(silence.times, (WeeklyTime((1,), 1320, 240), WeeklyTime(tuple(range(7)), 720, 750)))
        (silence,) = parseConfig(f"{head}\nuntil = 9999-12-31").alerts.silences
        self.assertGreater(silence.until, 2.5e11)

    def test_whole(self) -> None:
        """Given values are used, and the others have their defaults."""
        config = parseConfig(WHOLE)
        self.assertEqual((config.port, config.listen), ("sim:fattree:4", ""))
        self.assertEqual((config.settings.intervalSeconds, config.settings.wantsNotices), (1.0, False))
        self.assertEqual(config.counters, ("portXmitData", "symbolErrorCounter"))
        self.assertEqual((config.rules.clearSeconds, config.rules.ignored), (5.0, {"vl15-dropped"}))
        self.assertEqual(config.rules.severities, {"width": Severity.CRITICAL})
        self.assertIn(TallyLimit("symbolErrorCounter", 7, 3600.0), config.limits)
        self.assertEqual((config.alerts.delaySeconds, config.alerts.least), (5.0, Severity.INFO))
        (silence,) = config.alerts.silences
        self.assertEqual((silence.kind, silence.until), ("node-gone", 1798135200.0))
        self.assertEqual([kind for _name, _url, kind, _ in config.webhooks], ["alertmanager", "webhook"])
        assert config.mail is not None
        self.assertEqual((config.mail.port, config.mail.receivers), (25, ("ops@example.org",)))
        self.assertEqual(config.log, "findings.log")
        self.assertEqual(config.limits[-1], TallyLimit("portXmitWait", 1000000, 60.0))

    def test_mistakes(self) -> None:
        """All errors are reported at once, each with its line."""
        error = self.assertRaises(InvalidRequest, parseConfig, WRONG, "my.toml")
        output = str(error).splitlines()
        self.assertEqual(
            [line.partition(": ")[2].partition(":")[0].partition(" ")[0] for line in output],
            ["prot", "port", "poll.interval", "poll.outstanding", "poll.settle", "web.listen"]
            + ["findings.ignored", "findings.severity.width", "findings.severity.silly", "limits.NoCounter"]
            + ["history.url", "alerts.mail", "alerts.mail.to", "alerts.webhooks.ours"]
            + ["alerts.webhooks.ours.format"]
            + ["alerts.silences.works.until", "limits.VL15Dropped.least", "limits.VL15Dropped.most"],
        )
        lines = WRONG.splitlines()
        for line in output:
            number = int(line.partition("line ")[2].partition(":")[0])
            key = line.partition(": ")[2].partition(":")[0].rpartition(".")[2]
            self.assertIn(key, lines[number - 1])

    def test_jobs(self) -> None:
        """The command that prints the jobs of Slurm has words that may be quoted."""
        config = parseConfig("slurm.jobs = \"squeue -h -o '%i:%u:%N:%j'\"")
        self.assertEqual(config.jobs, ("squeue", "-h", "-o", "%i:%u:%N:%j"))

    def test_mistake(self) -> None:
        """A wrong value is refused with its line, its key and the reason."""
        works, url = "alerts.silences.works", "alerts.webhooks.a.url"
        mail = dict.fromkeys(("from", "to"), "an address of mail in ASCII")
        mistakes: dict[str, dict[str, tuple[str, ...]]] = {
            f"{works}.times": {
                "a list of times": ("'tue'", "[]", "['tue 22:00']", "['tue 24:00-25:00']", "[1]")
            },
            f"{works}.until": {"a date or a time": ("0001-01-01", "0001-01-01T00:00:00", "'soon'")},
            "slurm.jobs": {"is ": ('"squeue \'"', "''", "' '", "7")},
            "history.file": {"a text without NUL": ('"a\\u0000b"',)},
            "history.url": {"a URL": ("'history.db'",)},
            "history.hours.days": {"days, from": ("0",)},
            "history.events.megabytes": {"a whole number": ("0.5",)},
            "poll.collectors": {"a list of client endpoint strings": ("[]", "[1]")},
            "alerts.mail.host": {
                "a name of": ("''", "'my_mail'", "'a..b'", "'mail example'", "'mail:25'", "'ä_b'")
            },
            "alerts.mail.from": {mail["from"]: ("'ä@b'", "'a@[::1]'", "'<a@b>'", "'a@b@c'", "'a@b_c'")},
            "alerts.mail.to": {mail["to"]: ("['ä@b']",)},
            "web.listen": {
                "'http' is not a port number": ("'tcp:http'",),
                "'99999' is not a port number": ("'tcp:99999:interface=127.0.0.1'",),
                "but not 'host'": ("'tcp:80:host=127.0.0.1'",),
                "interface= is given twice": ("'tcp:80:interface=127.0.0.1:interface=0.0.0.0'",),
                "there is no kind of endpoint": ("'http:80'", "'8080'"),
            },
            url: {
                "a URL, as": ("'ftp://engine/'", "'http:///x'", "'http://engine/a b'", "'http://e/ä'"),
                "a URL with a name": ("'http://my_e:9090/'", "'http://a..b/'", f"'http://{'a' * 64}/'"),
                "a port up to 65535": ("'http://e:99999/'", "'http://e:0/'", "'http://e:/'"),
                "a URL without name and password": ("'http://me:secret@engine/'",),
            },
            "remote-write.labels.guid": {"is a name of": ("'x'",)},
            "remote-write.labels.1x": {"is a name of": ("'x'",)},
            "remote-write.labels.x": {"a text on one line": ("''",)},
            "remote-write.headers.X": {"a text on one line": ('"a\\nb"',)},
        }
        for key, several in mistakes.items():
            for why, wrong in several.items():
                for value in wrong:
                    error = self.assertRaises(InvalidRequest, parseConfig, f"\n{key} = {value}")
                    self.assertIn(f"line 2: {key}: ", str(error))
                    self.assertIn(why, str(error))

    def test_missing(self) -> None:
        """Keys that need another one, or exclude it, are mistakes without it, or with it."""
        engine = 'remote-write.url = "http://engine/"\n'
        for text, why in {
            engine: "remote-write: has no spill",
            f"{engine}poll.interval = 1": "poll.interval: with remote-write",
            'poll.collectors = ["tcp:reader1:9316"]': "poll: has no collector-key-file",
        }.items():
            self.assertIn(why, str(self.assertRaises(InvalidRequest, parseConfig, text)))

    def test_missingFiles(self) -> None:
        """The error about a file that is missing has its path once."""
        path, why = "/x/missing", "No such file or directory"
        text = f'alerts.mail = {{host = "x", from = "a@x", to = ["a@x"], password-file = "{path}"}}'
        for expected, read in {
            f"{path}: {why}": lambda: readConfig(path),
            f"password of mail: {path}: {why}": lambda: parseConfig(text),
            f"topology {path}: {why}": lambda: readCables(path),
        }.items():
            self.assertEqual(str(self.assertRaises(InvalidRequest, read)), expected)

    def test_oneLine(self) -> None:
        """Errors in inline tables, dotted keys and lists have line numbers."""
        lines = (
            'alerts.webhooks = { a = { url = "ftp://x" }, b = 3 }',
            'alerts.silences.works = { until = "soon", what = 1 }',
            'findings.severity = { width = "awful" }',
            'alerts.mail.to = ["ops@example.org"]',
            "poll.interval = 1e300",
            "poll.outstanding = 99999999999999999999",
            "[[files]]",
        )
        error = self.assertRaises(InvalidRequest, parseConfig, "\n".join(("# lines", *lines)), "my.toml")
        output = [line.partition(", line ")[2].split(": ")[:2] for line in str(error).splitlines()]
        self.assertEqual(
            [(int(number), key.partition(" ")[0]) for number, key in output],
            [(2, "alerts.webhooks.a.url"), (2, "alerts.webhooks.b"), (3, "alerts.silences.works.until")]
            + [(3, "alerts.silences.works.what"), (4, "findings.severity.width"), (5, "alerts.mail")]
            + [(5, "alerts.mail"), (6, "poll.interval"), (7, "poll.outstanding"), (8, "files")],
        )

    def test_example(self) -> None:
        """The example contains the defaults, except for the history; its comments are correct."""
        example = Path(txrdma.__file__).parent.parent / "examples" / "fabric-monitor" / "fabric-monitor.toml"
        if not example.exists():
            self.skipTest("the examples are in the sources, and not installed")
        text = example.read_text()
        self.assertEqual(replace(parseConfig(text), history=""), parseConfig(""))
        reported = parseConfig(re.sub("(?m)^#(?=[a-z\\[])", "", text))
        self.assertEqual((reported.port, len(reported.webhooks)), ("umad:mlx5_0/1", 1))
        assert reported.mail is not None
        self.assertEqual(reported.mail.receivers, ("operators@example.org",))

    def test_page(self) -> None:
        """The configuration in the documentation is valid, and so are the rules of a rehearsal."""
        pages = list((Path(txrdma.__file__).parent.parent / "docs").glob("*monitor*.md"))
        if not pages:
            self.skipTest("the documentation is in the sources, and not installed")
        shown = re.findall("```toml\n(.*?)```", "".join(page.read_text() for page in pages), re.DOTALL)
        self.assertGreater(len(shown), 9)
        for text in shown:
            if "[[fault]]" in text:
                rules = Path(self.mktemp())
                rules.write_text(text)
                self.assertEqual(len(readRehearsal(str(rules)).plan.faults), 3)
            else:
                parseConfig(text)

    def test_shares(self) -> None:
        """The shares of a core on the page are those that were measured."""
        docs = Path(txrdma.__file__).parent.parent / "docs"
        if not docs.exists():
            self.skipTest("the documentation is in the sources, and not installed")
        page = (docs / "fabric-monitor.md").read_text()
        sections = json.loads((docs / "benchmarks-management.json").read_text())["sections"]
        shares = {row["title"]: row for section in sections for row in section["rows"]}
        for hosts, shown in (("900", "{} % of a processor core"), ("10,368", "{} % of a core")):
            share = median(shares[f"{hosts} hosts at 10 s, share of a core"]["tested"])
            self.assertIn(shown.format(ceil(100 * share)), page)

    def test_syntax(self) -> None:
        """A syntax error of TOML is reported with its line."""
        error = self.assertRaises(InvalidRequest, parseConfig, "port = \n")
        self.assertIn("line 1", str(error))

    def test_loopback(self) -> None:
        """The pages are accessible only from this host, unless there are tokens or passwords."""
        for listen in (
            *("tcp:80:interface=127.0.0.1", r"tcp:80:interface=\\:\\:1", "unix:/run/m", ""),
            *("tcp:interface=127.0.0.1:port=80", "tcp:80:127.0.0.9", r"tcp6:80:interface=\\:\\:1"),
        ):
            self.assertEqual(parseConfig(f'web.listen = "{listen}"').listen, listen.replace("\\\\", "\\"))
        for listen in (
            *("tcp:80", "tcp:80:interface=0.0.0.0", "smc:80", "tcp:80:interface=127.0.0.1.example"),
            *("tcp6:80", "systemd:domain=INET:index=0"),
        ):
            error = self.assertRaises(InvalidRequest, parseConfig, f'web.listen = "{listen}"')
            self.assertIn("line 1: web.listen", str(error))
            self.assertIn("everybody could read", str(error))
            config = parseConfig(f'web.listen = "{listen}"\nweb.users = "/etc/users"')
            self.assertEqual((config.listen, config.users, config.tokens), (listen, "/etc/users", ""))

    def test_urls(self) -> None:
        for url in (
            *("http://engine", "https://engine.example.org.:443/a?b=c", "http://127.0.0.1:9090/"),
            *("http://E-1/", "http://[::1]:9090/x", "http://{fabric}.example.org/{fabric}"),
            *("http://[fe80::1%eth0]/", f"http://{'a.' * 126}b/"),
        ):
            self.assertEqual(parseConfig(f'alerts.webhooks.a.url = "{url}"').webhooks[0][1], url)

    def test_mail(self) -> None:
        usual = {"host": '"mail.example.org"', "from": '"a@b"', "to": '["c@d", "{fabric}.x+y@example.org"]'}
        for key, values in {
            "host": ("mail", "127.0.0.1", "::1", "mail.example.org.", "{fabric}-mail"),
            "from": ("fabric_1@example.org", "o'neil@b", "a.b-c/d=e@b-c"),
        }.items():
            for value in values:
                given = {**usual, key: f'"{value}"'}
                mail = parseConfig("\n".join(f"alerts.mail.{name} = {given[name]}" for name in given)).mail
                assert mail is not None
                self.assertIn(value, (mail.host, mail.sender))

    def test_authorization(self) -> None:
        """The Authorization header of a webhook is in a separate file, on one line."""
        path = self.mktemp()
        text = f'alerts.webhooks.a = {{ url = "http://x/", authorization-file = "{path}" }}'
        Path(path).write_text("Bearer abc\n")
        expected = (("a", "http://x/", "alertmanager", "Bearer abc"),)
        self.assertEqual(parseConfig(text).webhooks, expected)
        Path(path).write_text("\ufeffBearer abc\r\n")  # as some editors write it
        self.assertEqual(parseConfig(text).webhooks, expected)
        for content in ("", "one\ntwo\n"):
            Path(path).write_text(content)
            error = self.assertRaises(InvalidRequest, parseConfig, text)
            self.assertIn("authorization of webhook a", str(error))

    def test_sharedSecret(self) -> None:
        """A file with a secret that everybody can read causes one warning with the remedy."""
        paths = [self.mktemp() for _ in range(3)]
        hooks = "".join(
            f'alerts.webhooks.{name} = {{ url = "http://x/", authorization-file = "{path}" }}\n'
            for name, path in zip("ab", paths, strict=False)
        )
        text = (
            f'{hooks}alerts.mail = {{ host = "x", from = "a@x", to = ["b@x"], user = "u",'
            f' password-file = "{paths[2]}" }}'
        )
        for path, mode in zip(paths, (0o644, 0o640, 0o604), strict=True):
            Path(path).write_text("secret")
            Path(path).chmod(mode)
        with capturedLogs() as logs:
            for _ in range(2):
                parseConfig(text)
        self.assertEqual([event["log_level"] for event in logs], [LogLevel.warn] * 2)
        messages = map(formatEvent, logs)
        for path, message in zip((paths[0], paths[2]), messages, strict=True):
            self.assertTrue(message.endswith(f": chmod 600 {path}"), message)

    def test_database(self) -> None:
        """A history may be in a database, given by its URL; its levels and events have limits."""
        text = "history.readings.days = 1\nhistory.minutes = {days = 7.5, megabytes = 100}\n"
        config = parseConfig(f"{text}history.events.megabytes = 1")
        readings, minutes, hours = config.levels
        self.assertEqual(readings, replace(DEFAULT_LEVELS[0], retentionSeconds=86400))
        self.assertEqual((minutes.retentionSeconds, minutes.mostOctets), (648_000, 100 << 20))
        self.assertEqual((hours, config.events), (DEFAULT_LEVELS[2], replace(EVENTS, mostOctets=1 << 20)))
        url = "postgresql+psycopg://fabric@db/history"
        self.assertEqual(parseConfig(f'history.url = "{url}"').history, url)

    def test_remoteWrite(self) -> None:
        """An engine has a URL and a spill; labels and headers are tables, and a secret is in a file."""
        path = self.mktemp()
        Path(path).write_text("Bearer abc\n")
        text = f"""
            [remote-write]
            url = "http://engine:9090/api/v1/write"
            query-url = "http://engine:9090"
            spill = "/var/spool/fabric"
            megabytes = 10
            timeout = 3
            authorization-file = "{path}"
            labels = {{fabric = "north", site = "ä"}}
            headers = {{X-Scope-OrgID = "hpc"}}
        """
        remote = parseConfig(text).remote
        assert remote is not None
        urls = (remote.url, remote.queryURL)
        self.assertEqual(urls, ("http://engine:9090/api/v1/write", "http://engine:9090"))
        self.assertEqual((remote.spill, remote.mostOctets), ("/var/spool/fabric", 10 << 20))
        self.assertEqual((remote.timeoutSeconds, remote.labels), (3.0, (("fabric", "north"), ("site", "ä"))))
        self.assertEqual(remote.allHeaders, {"X-Scope-OrgID": "hpc", "Authorization": "Bearer abc"})
        self.assertIsNone(parseConfig("").remote)

    def test_collectors(self) -> None:
        """Collectors need a key, and endpoint strings that Twisted knows."""
        path = self.mktemp()
        Path(path).write_text("a common secret\n")
        key = f'poll.collector-key-file = "{path}"\n'
        config = parseConfig(f'{key}poll.collectors = ["tcp:reader1:9316", "unix:/run/reader2"]')
        self.assertEqual(config.collectors, ("tcp:reader1:9316", "unix:/run/reader2"))
        agent: Any = None  # the agent is not used
        config = parseConfig(f'port = "sim:fattree:4"\n{key}poll.collectors = ["what:1"]')
        error = self.assertRaises(InvalidRequest, collectorsOf, Clock(), config, agent)
        self.assertIn("poll.collectors 'what:1'", str(error))
        config = replace(config, collectors=("tcp:reader1:9316",), collectorKeyFile="/nowhere")
        error = self.assertRaises(InvalidRequest, collectorsOf, Clock(), config, agent)
        self.assertIn("poll.collector-key-file: ", str(error))

    def test_option(self) -> None:
        """An invalid or missing file ends C{twistd} with a message."""
        path = self.mktemp()
        Path(path).write_text(WRONG)
        for config in (path, self.mktemp(), ""):
            self.assertRaises(UsageError, Options().parseOptions, ["--config", config])
        Path(path).write_text(WHOLE)
        options = Options()
        options.parseOptions(["--config", path])
        self.assertEqual(options["read"].port, "sim:fattree:4")

    def test_plugin(self) -> None:
        services = {maker.tapname for maker in getPlugins(IServiceMaker)}
        self.assertLessEqual({"fabric-monitor", "fabric-collector"}, services)


class PageTests(PollerTestCase):
    def scraped(self, remote: RemoteWriter | None = None) -> Samples:
        watch = Watch(self.poller, None, self.clock.seconds, remote)
        return parsed("".join(exposed(Metrics(watch).families())))

    def test_manyFindings(self) -> None:
        """The number of findings with a separate series is limited: the most severe, then the oldest."""
        severe = [Finding("no-sm", "fabric", "", GUID.fromInt(5000))]
        several = [Finding("width", "x", "", GUID.fromInt(at)) for at in range(MOST_FINDINGS)]
        self.poller.findings.report("test", several)
        self.clock.advance(1.0)
        self.poller.findings.report("severe", severe)
        found = self.scraped()
        series = [dict(given) for name, given in found if name == "txrdma_monitor_finding"]
        self.assertEqual(len(series), MOST_FINDINGS)
        self.assertIn("no-sm", {one["kind"] for one in series})

    def test_remoteWrite(self) -> None:
        """A scrape contains the numbers of samples that were sent to an engine, lost, and queued."""
        spool = Spool(self.mktemp(), 1 << 20)
        sender = RemoteSender(self.clock, PreparedAgent(), "http://engine/", {}, 10.0, spool, maybeDeferred)
        self.addCleanup(sender.close)
        sender.sent = 7
        sender.lose("of a test", 3)
        now = self.clock.seconds()
        self.successResultOf(maybeDeferred(spool.append, b"one", 5, int(now) + 40))
        self.clock.advance(100.0)
        writer = RemoteWriter(self.clock, sender, (), maybeDeferred)
        found = self.scraped(writer)
        none, reason = frozenset[tuple[str, str]](), frozenset({("reason", "of a test")})
        for name, labels, value in (
            *(("sent_samples_total", none, 7), ("lost_samples_total", reason, 3)),
            *(("waiting_samples", none, 5), ("spill_bytes", none, BLOCK_OCTETS)),
            ("oldest_seconds", none, 60),
        ):
            self.assertEqual(found[f"txrdma_monitor_remote_write_{name}", labels], value, name)

    def test_metrics(self) -> None:
        """A scrape contains counters, current states, and the monitor's own metrics."""
        self.assertIn(("txrdma_monitor_readings_total", frozenset()), self.scraped())
        self.started()
        self.fabric.cut("c")
        self.pump(20.0)
        found = self.scraped()
        self.assertEqual(found["txrdma_monitor_readings_total", frozenset()], self.poller.statistics.readings)
        self.assertLess(found["txrdma_monitor_loop_age_seconds", frozenset({("loop", "round")})], 11.0)
        guid = f"{int(self.fabric.node('c').guid):#018x}"
        gone = {("kind", "node-gone"), ("severity", "warning"), ("guid", guid), ("port", "")}
        (entry,) = self.poller.findings.log.open.values()
        for isAcknowledged in (False, True):
            if isAcknowledged:
                self.poller.findings.annotate(entry, Action.ACKNOWLEDGE, "alice", "")
                found = self.scraped()
            for text in ("false", "true"):
                number, label = int(text == str(isAcknowledged).lower()), ("acknowledged", text)
                severity = frozenset({("severity", "warning"), label})
                self.assertEqual(found["txrdma_monitor_findings", severity], number)
                self.assertEqual(("txrdma_monitor_finding", frozenset({*gone, label})) in found, bool(number))
        guid = f"{int(self.fabric.node('right').guid):#018x}"
        where = frozenset({("guid", guid), ("port", "1")})
        self.assertEqual(found["infiniband_state_id", where], 1)
        self.assertIn(("infiniband_port_data_transmitted_bytes_total", where), found)
