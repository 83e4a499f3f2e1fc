"""
The dashboard for Grafana, checked with the types of Grafana's own package @grafana/schema.

TypeScript's compiler compares the file with them: unknown names, values of other types, and values that are
not in an enumeration are errors. Queries belong to Prometheus, and are not checked here.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SkipTest, SynchronousTestCase

import txrdma.monitor.web
from txrdma.test.system.browser import FOLDER

BOARD = Path(txrdma.monitor.web.__file__).parent / "files" / "grafana.json"
TYPES = "./node_modules/@grafana/schema/dist/types/raw"
PROGRAM = """
import type {{ Dashboard, Panel }} from '{types}/dashboard/x/types.gen';
import type * as stat from '{types}/composable/stat/panelcfg/x/types.gen';
import type * as table from '{types}/composable/table/panelcfg/x/types.gen';
import type * as timeseries from '{types}/composable/timeseries/panelcfg/x/types.gen';

// As JSON has it: of an enumeration of words the words themselves.
type Plain<T> = T extends string ? (string extends T ? T : `${{T}}`)
    : T extends (infer U)[] ? Plain<U>[]
    : T extends object ? {{ [K in keyof T]: Plain<T[K]> }}
    : T;
type Fields = NonNullable<Panel['fieldConfig']>;
type Custom<T> = {{
    defaults: Omit<Fields['defaults'], 'custom'> & {{ custom?: Partial<T> }}, overrides: Fields['overrides']
}};
type Stat = Omit<Panel, 'options' | 'fieldConfig'>
    & {{ options?: Partial<stat.Options>, fieldConfig: Custom<Record<string, never>> }};
type Table = Omit<Panel, 'options' | 'fieldConfig'>
    & {{ options?: Partial<table.Options>, fieldConfig: Custom<table.FieldConfig> }};
type Timeseries = Omit<Panel, 'options' | 'fieldConfig'>
    & {{ options?: Partial<timeseries.Options>, fieldConfig: Custom<timeseries.FieldConfig> }};

export const board: Plain<Omit<Dashboard, 'panels'>> = {board};
export const stats: Plain<Stat>[] = {stats};
export const tables: Plain<Table>[] = {tables};
export const series: Plain<Timeseries>[] = {series};
"""


class GrafanaTests(SynchronousTestCase):
    slowBecause = "compiles the board with TypeScript and Grafana schemas"

    def setUp(self) -> None:
        self.folder = FOLDER / "grafana"
        if not (self.folder / "node_modules" / "typescript").exists() or shutil.which("node") is None:
            raise SkipTest("@grafana/schema is not here: tools/have-browser fetches it from the npm registry")
        self.board: dict[str, Any] = json.loads(BOARD.read_text())

    def complaints(self) -> str:
        """Return the compiler's errors about the dashboard."""
        panels = self.board.pop("panels")
        kinds = {
            kind: [one for one in panels if one["type"] == kind] for kind in ("stat", "table", "timeseries")
        }
        self.assertEqual(sum(map(len, kinds.values())), len(panels))
        program = PROGRAM.format(
            types=TYPES,
            board=json.dumps(self.board, indent=1),
            stats=json.dumps(kinds["stat"], indent=1),
            tables=json.dumps(kinds["table"], indent=1),
            series=json.dumps(kinds["timeseries"], indent=1),
        )
        (self.folder / "board.ts").write_text(program)
        compiler = self.folder / "node_modules" / "typescript" / "bin" / "tsc"
        options = ["--noEmit", "--strict", "--skipLibCheck", "--module", "esnext", "--target", "es2022"]
        words = ["node", str(compiler), *options, "--moduleResolution", "bundler", "board.ts"]
        done = subprocess.run(words, cwd=self.folder, capture_output=True, text=True, timeout=100)
        return done.stdout + done.stderr

    def test_types(self) -> None:
        """Everything in the dashboard conforms to Grafana's types."""
        self.assertEqual(self.complaints(), "")

    def test_judge(self) -> None:
        """The check is effective: each of several mistakes is reported."""
        for mistake, output in (
            (lambda board: board.update(refreshh="30s"), "refreshh"),
            (lambda board: board["panels"][0]["options"].update(colorMode="loud"), "loud"),
            (lambda board: board["panels"][0]["gridPos"].update(x="left"), "left"),
            (lambda board: board["templating"]["list"][0].update(type="nonsense"), "nonsense"),
        ):
            self.board = json.loads(BOARD.read_text())
            mistake(self.board)
            self.assertTrue(self.complaints(), output)
