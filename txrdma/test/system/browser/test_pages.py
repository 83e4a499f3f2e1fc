"""
Pages in Chromium: all pages, live changes, the keyboard, a narrow window, and dark mode.

Run by C{make test-all}, which installs what it needs. Pictures are saved in C{build/browser}, and with
C{PICTURES} in the documentation.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.monitor.web.layout import MENU
from txrdma.test.support.monitor.prometheus import freeAddress
from txrdma.test.system.browser import FOLDER
from txrdma.test.system.browser.serving import HOSTILE, PASSWORD, USER

DOCUMENTED = ("overview", "topology", "port", "difference")
"""Pictures that the documentation shows."""

LOGIN = f"//{quote(USER)}:{quote(PASSWORD)}@"
PATIENCE_SECONDS = 40.0
MOST_OCTETS = 250_000
SWITCHES = (
    "--headless=new",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--enable-unsafe-swiftshader",
)


TWISTD = "from twisted.scripts.twistd import run; run()"
REPLAY = """
[web]
listen = 'tcp:0:interface=127.0.0.1'

[poll]
interval = 0.1
sweep = 1
settle = 0.1
states = 1
survey = 0
"""

FRONT = """
web.listen = 'tcp:0:interface=127.0.0.1'

[fabrics.north]
url = '{url}'
authorization-file = '{secret}'

[fabrics.south]
url = 'http://{away}'
"""

AXE = """
    const done = arguments[arguments.length - 1];
    const found = (all) => done(all.violations.map((one) => `${one.id}: ${one.nodes[0].html}`));
    axe.run({resultTypes: ["violations"]}).then(found);
"""


NO_WEBGL = """
    const getContext = HTMLCanvasElement.prototype.getContext;
    HTMLCanvasElement.prototype.getContext = function (kind, ...more) {
        return kind.includes("webgl") ? null : getContext.call(this, kind, ...more);
    };
"""


TWO_FRAMES = """
    const done = arguments[arguments.length - 1];
    requestAnimationFrame(() => requestAnimationFrame(() => done()));
"""


def why() -> str:
    """Return the reason why these tests cannot run here, or C{""}."""
    if find_spec("selenium") is None:
        return "selenium is not installed: the extra browser brings it"
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        return "chromium and chromium-driver are not here"
    return ""


def tearDownModule() -> None:
    """End the browser and the monitor."""
    BrowserTests.end()


class BrowserTests(SynchronousTestCase):
    """One browser and one monitor for all tests."""

    slowBecause = "drives a browser through all pages"

    if why():
        skip = why()

    driver: ClassVar[Any] = None
    server: ClassVar[Any] = None
    url: ClassVar[str] = ""
    folder: ClassVar[Path]

    @classmethod
    def begin(cls) -> None:
        """Start both, once for all tests: trial has no fixtures of classes."""
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        cls.folder = FOLDER
        cls.folder.mkdir(parents=True, exist_ok=True)
        history = cls.folder / f"history-{os.getpid()}.db"
        command = [sys.executable, "-m", "txrdma.test.system.browser.serving", str(history)]
        pipe = subprocess.PIPE
        cls.server = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        cls.url = cls.server.stdout.readline().strip().rstrip("/")
        options = webdriver.ChromeOptions()
        options.binary_location = str(shutil.which("chromium"))
        for switch in SWITCHES:
            options.add_argument(switch)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        cls.driver = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))

        atexit.register(cls.end)
        cls.driver.get(cls.url.replace("//", LOGIN))  # the browser sends them from now on

    @classmethod
    def end(cls) -> None:
        """End both, if they have begun."""
        atexit.unregister(cls.end)
        if cls.driver is None:
            return
        cls.driver.quit()
        cls.driver = None
        cls.server.stdin.close()
        cls.server.wait(30)
        for path in cls.folder.glob(f"history-{os.getpid()}.db*"):
            path.unlink()

    def setUp(self) -> None:
        """Use a window of the usual size in light mode."""
        if self.driver is None:
            self.begin()
            self.until(lambda: self.at("/") and "Looking" not in self.text("#health"))
        self.driver.get("about:blank")  # the overview, which most tests do not need, draws for long
        self.setView(1280, 900)
        self.complaints()

    # Steps of tests.

    def order(self, *words: object) -> None:
        self.server.stdin.write(" ".join(map(str, words)) + "\n")
        self.server.stdin.flush()

    def setView(self, width: int, height: int, isDark: bool = False) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        colours = {"name": "prefers-color-scheme", "value": "dark" if isDark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [colours]})

    def at(self, path: str) -> bool:
        self.driver.get(self.url + path)
        return True

    def js(self, text: str, *values: object) -> Any:
        return self.driver.execute_script(text, *values)

    def text(self, selector: str) -> str:
        return str(self.js("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def until(self, isTrue: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while not isTrue():
            if time.monotonic() > end:
                self.picture("failed")
                self.fail("the condition is not met")
            time.sleep(0.1)

    def drawn(self, selector: str) -> None:
        self.until(lambda: self.js("return document.querySelector(arguments[0])?.dataset.drawn", selector))

    def complaints(self) -> list[str]:
        """Return new complaints of the browser: failed scripts and refused contents; not hints of OpenGL."""
        messages = [entry["message"] for entry in self.driver.get_log("browser")]
        return [message for message in messages if "GL Driver Message" not in message]

    def complaintsOfAxe(self) -> list[str]:
        """Return the violations that axe finds on the current page."""
        axe = self.folder / "axe.min.js"
        if not axe.exists():
            raise SkipTest("axe-core is not here: tools/have-browser fetches it from the npm registry")
        self.js(axe.read_text())
        path = self.driver.current_url.removeprefix(self.url)
        return [f"{path} {each}" for each in self.driver.execute_async_script(AXE)]

    def picture(self, name: str) -> None:
        """Save a picture of the page, after two frames; with C{PICTURES}, a documented one there as well."""
        self.driver.execute_async_script(TWO_FRAMES)
        self.driver.save_screenshot(str(self.folder.resolve() / f"monitor-{name}.png"))
        documentation = os.environ.get("PICTURES")
        if documentation and name in DOCUMENTED:
            time.sleep(1)  # transitions of colours
            self.document(str(Path(documentation).resolve() / f"monitor-{name}.png"))

    def document(self, path: str) -> None:
        """Save a picture with 256 colours: a third of the size, without a visible difference."""
        self.driver.save_screenshot(path)
        if find_spec("PIL") is not None:
            from PIL import Image

            with Image.open(path) as picture:
                few = picture.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE)
            few.save(path, optimize=True)

    def guid(self, name: str) -> str:
        """Return the GUID of a node, as shown on the page of nodes."""
        self.at(f"/nodes?search={name}")
        return self.text("#rows code")

    # Tests.

    def test_everyPage(self) -> None:
        """Every page is shown without a complaint of the browser, and names from the fabric are text."""
        leaf = self.guid("leaf04")
        paths = [path for path, _text in MENU]
        paths += [f"/nodes/{leaf}", f"/nodes/{leaf}/ports/9", "/trace?from=node003+HCA-1&to=node100+HCA-1"]
        paths += [f"/nodes?search={HOSTILE[:8].replace('<', '%3C')}"]
        for path in paths:
            self.at(path)
            self.assertIn("Fabric monitor", self.driver.title)
            self.assertTrue(self.text("h1"))
            self.assertEqual(self.complaints(), [], path)
        self.assertIn(HOSTILE, self.text("#rows"))

    def test_blastRadius(self) -> None:
        """The page of a leaf switch lists the hosts that are cut off without it, with links to them."""
        leaf = self.guid("leaf04")
        self.at(f"/nodes/{leaf}")
        self.assertIn("Hosts cut off", self.text("#blast-radius"))
        self.assertGreater(self.count("#blast-radius a"), 3)
        self.at(f"/nodes/{leaf}/ports/9")
        self.assertIn("Without this cable", self.text("#blast-radius"))
        self.assertEqual(self.complaints(), [])

    def test_change(self) -> None:
        """The loss of a host and its return are shown on the open page, whose focus does not change."""
        self.at("/")
        self.until(lambda: "All is well" in self.text("#banner"))
        self.drawn("#topology")
        self.js("window.stayed = true; document.querySelector('#tiles a').focus()")
        self.order("cut", "h00042", 1)
        self.until(lambda: "1 finding" in self.text("#banner"))
        self.until(lambda: "it is gone" in self.text("#findings"))
        self.until(lambda: "127" in self.text("#tiles"))
        self.assertTrue(self.js("return window.stayed && document.activeElement.closest('#tiles') !== null"))
        self.order("heal", "h00042", 1)
        self.until(lambda: "All is well" in self.text("#banner"))
        self.assertTrue(self.js("return window.stayed"))
        self.assertEqual(self.complaints(), [])

    def test_operator(self) -> None:
        """An operator acknowledges a finding with a comment by its page, which shows them, as text."""
        self.order("cut", "h00043", 1)
        self.addCleanup(self.order, "heal", "h00043", 1)
        self.at("/findings")
        self.until(lambda: "it is gone" in self.text("#open"))
        self.js("document.querySelector('#open a[href*=\"/findings/\"]').click()")
        self.until(lambda: "Acknowledge or comment" in self.text("#actions"))
        self.setView(400, 800)
        self.assertLessEqual(self.js("return document.documentElement.scrollWidth"), 400)
        self.driver.find_element("css selector", "textarea").send_keys(f"{HOSTILE} is ordered")
        self.driver.find_element("css selector", "button[value=acknowledge]").click()
        self.until(lambda: USER in self.text("#state"))
        self.assertIn(f"{HOSTILE} is ordered", self.text("#comments"))
        self.assertIn("End the acknowledgement", self.text("#actions"))
        self.picture("finding")
        self.at("/findings")
        self.assertIn(f"Acknowledged by {USER}, 1 comment", self.text("#open"))
        self.assertEqual(self.complaints(), [])

    def test_keyboard(self) -> None:
        """The keyboard is sufficient to skip to the content, and to reach a node's page."""
        from selenium.webdriver.common.keys import Keys

        self.at("/nodes")
        body = self.driver.switch_to.active_element
        body.send_keys(Keys.TAB)
        self.assertEqual(self.js("return document.activeElement.textContent"), "Skip to the content")
        self.driver.switch_to.active_element.send_keys(Keys.ENTER)
        for _ in range(30):
            self.driver.switch_to.active_element.send_keys(Keys.TAB)
            if "/nodes/0x" in self.js("return document.activeElement.href ?? ''"):
                break
        outline = self.js("return getComputedStyle(document.activeElement).outlineStyle")
        self.assertEqual(outline, "solid")
        self.driver.switch_to.active_element.send_keys(Keys.ENTER)
        self.until(lambda: "/nodes/0x" in self.driver.current_url)
        self.assertEqual(self.text("h1"), "leaf01")

    def test_narrow(self) -> None:
        """In a window of 400 pixels no page is wider; wide tables scroll separately."""
        paths = [path for path, _text in MENU] + self.detailPages()
        paths.append(f"/topology?from={int(time.time()) - 3600}&to=now")
        self.setView(400, 800)
        for path in paths:
            self.at(path)
            self.assertLessEqual(self.js("return document.documentElement.scrollWidth"), 400, path)
        self.at("/")
        self.drawn("#topology")
        self.picture("narrow")

    def test_labels(self) -> None:
        """Names of switches do not overlap: where there is no space, some are hidden."""
        found = []
        for width in (400, 1280):
            self.setView(width, 800)
            self.at("/topology")
            self.drawn("#topology")
            self.until(self.labels)
            found.append(self.labels())
        self.assertLess(found[0], found[1])
        self.assertGreaterEqual(found[1], 24)

    def labels(self) -> int:
        return int(self.js("return document.querySelector('#topology').dataset.labels ?? 0"))

    def test_dark(self) -> None:
        """In dark mode the page is dark, even without a reload."""

        def light() -> int:
            return int(self.js("return getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]"))

        self.at("/")
        self.assertGreater(light(), 200)
        self.setView(1280, 900, isDark=True)
        self.assertLess(light(), 60)

    def test_manyPages(self) -> None:
        """Nine open pages, more than a browser has connections, are all shown."""
        self.at("/")
        self.addCleanup(self.at, "/")
        first = self.driver.current_window_handle
        for _ in range(8):
            self.driver.switch_to.new_window("tab")
            self.driver.set_page_load_timeout(20)
            self.at("/nodes")
            self.assertEqual(self.text("h1"), "Nodes")
            self.until(lambda: self.text("#live") == "Live")
        for handle in self.driver.window_handles:
            if handle != first:
                self.driver.switch_to.window(handle)
                self.driver.close()
        self.driver.switch_to.window(first)
        self.until(lambda: self.text("#live") == "Live")

    def test_withoutScripts(self) -> None:
        """Without JavaScript the tables are shown, and areas for drawings are not."""
        self.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
        self.addCleanup(self.driver.execute_cdp_cmd, "Emulation.setScriptExecutionDisabled", {"value": False})
        for path in ("/nodes", "/links", "/topology"):
            self.at(path)
            self.assertGreater(self.driver.page_source.count("<tr>"), 50)
        self.assertFalse(self.driver.find_element("css selector", "#topology-figure").is_displayed())

    def test_withoutWebGL(self) -> None:
        """Without WebGL the topology is an SVG with colours of loads, names, a zoom, and links to nodes."""
        added = self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": NO_WEBGL})
        self.addCleanup(self.driver.execute_cdp_cmd, "Page.removeScriptToEvaluateOnNewDocument", dict(added))
        self.at("/topology")
        self.drawn("#topology")
        self.assertEqual(self.count("#topology canvas"), 0)
        self.assertGreaterEqual(self.count("#topology circle"), 24)
        self.assertGreaterEqual(self.count("#topology line"), 24)
        self.assertGreater(self.count("#topology text"), 8)
        view = "return document.querySelector('#topology svg').getAttribute('viewBox')"
        before = self.js(view)
        self.js("document.getElementById('topology-in').click()")
        self.assertNotEqual(self.js(view), before)
        self.picture("svg")
        expected = "GL Driver Message|sigma.min.js"  # that of the page before, and a library that needs WebGL
        self.assertEqual([one for one in self.complaints() if not re.search(expected, one)], [])
        self.js("document.querySelector('#topology circle').dispatchEvent(new MouseEvent('click'))")
        self.until(lambda: "/nodes/0x" in self.driver.current_url)

    def test_timeline(self) -> None:
        """Sliders show a state and its differences from now, by keyboard, in colours and as a table."""
        self.assertTimeline("leaf05")

    def test_userInAddress(self) -> None:
        """The topology and its sliders are there, too, if the address has a user and a password."""
        self.driver.get(f"{self.url.replace('//', LOGIN)}/topology")
        self.drawn("#topology")
        self.until(lambda: self.js("return document.getElementById('timeline').hidden === false"))

    def test_timelineWithoutWebGL(self) -> None:
        added = self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": NO_WEBGL})
        self.addCleanup(self.driver.execute_cdp_cmd, "Page.removeScriptToEvaluateOnNewDocument", dict(added))
        self.assertTimeline("leaf07")
        lines = "[...document.querySelectorAll('#topology line')]"
        colours = self.js(f"return {lines}.map((one) => one.getAttribute('stroke'))")
        self.assertEqual(len(set(colours)), 3)  # of hosts, of bundles, and of the changed one
        self.picture("difference-svg")

    def assertTimeline(self, leaf: str) -> None:
        """Cut a cable of a leaf, and choose the beginning of the history, then its differences from now."""
        from selenium.webdriver.common.keys import Keys

        self.order("cut", leaf, 11)
        self.addCleanup(self.order, "heal", leaf, 11)
        self.until(lambda: self.at(f"/findings?search={leaf}") and leaf in self.text("#open"))
        self.at("/topology")
        self.drawn("#topology")
        self.until(lambda: int(self.js("return document.getElementById('timeline').dataset.marks ?? 0")))
        self.press("timeline-from", Keys.HOME)
        self.untilMode("past")
        self.until(lambda: "Findings then" in self.text("#past"))
        spoken = "return document.getElementById('timeline-from').getAttribute('aria-valuetext')"
        self.assertRegex(self.js(spoken), r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$")
        self.press("timeline-compare", Keys.SPACE)
        self.untilMode("difference")
        self.until(lambda: re.search(f"link removed\\s+{leaf}", self.text("#past")))
        self.assertIn("to=now", self.driver.current_url)
        self.assertEqual(self.complaintsOfAxe(), [])
        self.driver.refresh()
        self.untilMode("difference")
        self.until(lambda: self.js("return document.getElementById('timeline').hidden === false"))
        self.assertTrue(self.js("return document.getElementById('timeline-compare').checked"))
        if not self.js("return document.querySelector('#topology svg') !== null"):
            self.picture("difference")
            self.press("timeline-from", Keys.END)
            self.untilMode("now")
            self.until(lambda: "Errors/s" in self.text("#past"))

    def press(self, identifier: str, key: str) -> None:
        self.js("document.getElementById(arguments[0]).focus()", identifier)
        self.driver.switch_to.active_element.send_keys(key)

    def untilMode(self, mode: str) -> None:
        self.until(lambda: self.js("return document.getElementById('topology').dataset.mode") == mode)

    def count(self, selector: str) -> int:
        return int(self.js("return document.querySelectorAll(arguments[0]).length", selector))

    def assertAccessible(self, isDark: bool, *paths: str) -> None:
        """Assert that axe reports no violation on these pages."""
        self.setView(1280, 900, isDark)
        found = []
        for path in paths:
            self.at(path)
            found += self.complaintsOfAxe()
        self.assertEqual(found, [])

    def detailPages(self) -> list[str]:
        """Return the paths of a node, a port and a path through the fabric."""
        leaf = self.guid("leaf04")
        return [f"/nodes/{leaf}", f"/nodes/{leaf}/ports/9", "/trace?from=node003+HCA-1&to=node100+HCA-1"]

    def test_accessibleFinding(self) -> None:
        """axe accepts the pages that show a finding."""
        self.assertFindingAccessible("h00050", isDark=False)

    def test_accessibleFindingDark(self) -> None:
        self.assertFindingAccessible("h00051", isDark=True)

    def assertFindingAccessible(self, host: str, isDark: bool) -> None:
        self.order("cut", host, 1)
        self.addCleanup(self.order, "heal", host, 1)
        # The finding of the previous test may be shown as well.
        self.until(lambda: self.at("/") and re.search("[1-9] finding", self.text("#banner")))
        self.at("/findings")
        path = self.js("return document.querySelector('#open a[href^=\"/findings/\"]').getAttribute('href')")
        self.assertAccessible(isDark, "/", "/findings", path)
        self.js("document.querySelector('textarea').value = 'cable ordered';")
        self.js("document.querySelector('button[value=acknowledge], button[value=comment]').click();")
        self.until(lambda: "cable ordered" in self.text("#comments"))
        self.assertAccessible(isDark, "/findings", path)

    def test_accessibleDetails(self) -> None:
        self.assertAccessible(False, *self.detailPages())

    def test_accessibleDetailsDark(self) -> None:
        self.assertAccessible(True, *self.detailPages())

    def test_accessibleBeforeFigures(self) -> None:
        """A chart has its name even before its first values arrive."""
        path = f"/nodes/{self.guid('leaf04')}/ports/9"
        never = {"source": "window.fetch = () => new Promise(() => {});"}
        script = self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", never)
        self.addCleanup(self.driver.execute_cdp_cmd, "Page.removeScriptToEvaluateOnNewDocument", script)
        self.at(path)
        self.until(
            lambda: len(self.driver.find_elements("css selector", "#charts .chart:not([hidden])")) == 3
        )
        self.assertEqual(self.complaintsOfAxe(), [])

    def test_errorCorrection(self) -> None:
        """A port whose link corrects errors has charts of that after the first value; others have none."""
        self.at(f"/nodes/{self.guid('leaf04')}/ports/9")
        hidden = "return document.querySelectorAll('#charts .chart[hidden]').length"
        self.drawn("#charts")
        self.until(lambda: self.js(hidden) == 0)
        self.assertEqual(self.js("return document.querySelectorAll('#charts .chart').length"), 5)
        self.at(f"/nodes/{self.guid('leaf02')}/ports/9")
        self.drawn("#charts")
        self.assertEqual(self.js(hidden), 2)

    def test_replay(self) -> None:
        """C{twistd fabric-monitor --replay} shows two snapshots one after the other, and says what it is."""
        files = [str(self.folder / f"replay-{name}-{os.getpid()}.snapshot") for name in ("before", "after")]
        config = self.folder / f"replay-{os.getpid()}.toml"
        config.write_text(REPLAY)
        devices = ("sim:fattree:8", "sim:fattree:8:dead=h00003")
        snapshot = [sys.executable, "-m", "txrdma", "snapshot", "--device"]
        quiet = subprocess.DEVNULL
        for device, file in zip(devices, files, strict=True):  # in this order, which the replay sorts them by
            done = subprocess.run([*snapshot, device, file], stdout=quiet, timeout=PATIENCE_SECONDS)
            self.assertEqual(done.returncode, 1 if "dead" in device else 0)  # 1: a node did not answer
        # Slowly: a node that is gone before the first sweep has finished is never known.
        replays = ["--speed", "0.2", *(word for file in files for word in ("--replay", file))]
        try:
            with self.served(config, *replays) as url:
                self.driver.get(url)
                self.assertIn("This is a replay of", self.text("#standby"))
                self.until(lambda: "h00003" in self.text("#findings"))
                self.assertEqual(self.complaints(), [])
                left = "return document.querySelector(arguments[0]).getBoundingClientRect().left"
                self.assertEqual(self.js(left, "#standby"), self.js(left, "h1"))
                for path in ("/topology", "/nodes", "/findings", "/links"):
                    self.driver.get(url + path)
                    self.assertIn("not the present state of the fabric", self.text("#standby"), path)
                    self.assertEqual(self.complaints(), [], path)
                self.picture("replay")
                self.assertEqual(self.complaintsOfAxe(), [])
        finally:
            for file in (*files, str(config)):
                os.unlink(file)

    @contextmanager
    def served(self, config: Path, *words: str) -> Iterator[str]:
        """Run C{twistd fabric-monitor} with a configuration, and yield the URL of its pages."""
        command = [
            sys.executable,
            "-c",
            TWISTD,
            "-n",
            "--pidfile=",
            "fabric-monitor",
            "--config",
            str(config),
        ]
        pipe = subprocess.PIPE
        with subprocess.Popen([*command, *words], stdout=pipe, stderr=subprocess.STDOUT, text=True) as server:
            try:
                assert server.stdout is not None
                lines = (re.search(r"starting on (\d+)", line) for line in server.stdout)
                yield next(f"http://127.0.0.1:{line[1]}" for line in lines if line)
            finally:
                server.kill()

    def test_frontEnd(self) -> None:
        """
        A front end shows this monitor and one that is away, also in a narrow window, and updates its page;
        nodes are found.
        """
        secret = self.folder / f"front-{os.getpid()}.authorization"
        config = self.folder / f"front-{os.getpid()}.toml"
        for path in (secret, config):
            path.touch(0o600)
            self.addCleanup(path.unlink)
        secret.write_text(f"Basic {b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}\n")
        config.write_text(FRONT.format(url=self.url, secret=secret, away=freeAddress()))
        with self.served(config) as url:
            self.until(lambda: self.driver.get(url) or "refused" in self.text("table"))
            self.assertIn("away", self.text("table"))
            self.assertEqual(self.complaints(), [])
            self.assertEqual(self.complaintsOfAxe(), [])
            self.setView(400, 800)
            self.assertLessEqual(self.js("return document.documentElement.scrollWidth"), 400)
            self.picture("front")
            self.setView(1280, 900)
            self.js("document.querySelector('#fabrics a').textContent = document.title = 'old'")
            self.until(lambda: "Live" in self.text("#live") and "old" not in self.text("#fabrics"))
            self.assertEqual(self.driver.title, "old")  # the page was not loaded again
            refresh = "document.dispatchEvent(new Event('monitor-time'))"
            for answer in ("async () => new Response('', {status: 502})", "(_, {signal}) => aborted(signal)"):
                self.js(f"""
                    const whole = window.fetch;
                    const timeout = AbortSignal.timeout;
                    AbortSignal.timeout = () => timeout.call(AbortSignal, 10);
                    const aborted = (signal) => new Promise((_, no) => signal.addEventListener('abort', no));
                    window.fetch = {answer};
                    window.restore = () => {{ window.fetch = whole; AbortSignal.timeout = timeout; }};
                    {refresh}
                """)
                self.until(lambda: "may be old" in self.text("#live"))
                self.js(f"restore(); {refresh}")
                self.until(lambda: self.text("#live") == "Live")
            self.driver.find_element("css selector", "input[name=search]").send_keys("leaf04\n")
            self.until(lambda: "Nodes (1)" in self.text("main"))
            self.assertIn("Without those of south", self.text("main"))
            self.assertEqual(self.complaints(), [])
            self.driver.find_element("css selector", "a[href*='/nodes/0x']").click()
            self.until(lambda: self.text("h1") == "leaf04")
            self.assertTrue(self.driver.current_url.startswith(self.url))

    def test_size(self) -> None:
        """The overview is small, including everything that it requests."""
        self.driver.execute_cdp_cmd("Network.enable", {})
        self.driver.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": True})
        self.addCleanup(self.driver.execute_cdp_cmd, "Network.setCacheDisabled", {"cacheDisabled": False})
        self.at("/")
        self.drawn("#topology")
        entries = """
            const loaded = performance.getEntriesByType('navigation')[0];
            const rest = performance.getEntriesByType('resource').filter((one) => one.transferSize);
            const sum = rest.reduce((all, one) => all + one.transferSize, loaded.transferSize);
            return [loaded.transferSize, sum];
        """
        page, everything = self.js(entries)
        self.assertGreater(page, 1000)
        self.assertLess(everything, MOST_OCTETS)

    def test_pictures(self) -> None:
        """Pictures of the pages include everything that scripts draw."""
        leaf = self.guid("leaf04")
        self.order("cut", "leaf06", 11)
        self.addCleanup(self.order, "heal", "leaf06", 11)
        self.at("/")
        self.until(lambda: "1 finding" in self.text("#banner"))
        self.drawn("#topology")
        self.until(lambda: self.js("return document.getElementById('topology').dataset.round"))
        self.setView(1280, 1000)
        self.picture("overview")
        self.setView(1280, 1000, isDark=True)
        self.picture("overview-dark")
        self.setView(1280, 1000)
        for name, path, place in (
            ("topology", "/topology", "#topology"),
            ("port", f"/nodes/{leaf}/ports/9", "#charts"),
            ("node", f"/nodes/{leaf}", ""),
            ("path", "/trace?from=node003+HCA-1&to=node100+HCA-1", ""),
        ):
            self.at(path)
            if place:
                self.drawn(place)
            self.picture(name)
            self.assertEqual(self.complaints(), [])


def _accessible(path: str, isDark: bool) -> Callable[[BrowserTests], None]:
    """Return a test of one page, in light or dark colours."""
    return lambda self: self.assertAccessible(isDark, path)


for _path, _name in MENU:
    setattr(BrowserTests, f"test_accessible{_name}", _accessible(_path, isDark=False))
    setattr(BrowserTests, f"test_accessible{_name}Dark", _accessible(_path, isDark=True))
