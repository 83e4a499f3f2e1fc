"""Transcripts of the runner."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.testing.streams import transcript
from txrdma.testing.streams.transcript import Entry, joined


class TranscriptTests(SynchronousTestCase):
    def test_entriesAreDecodedAsEncoded(self) -> None:
        for entry in (
            Entry(1.5, 0, "data", "300000 1a2b3c4d", 1.5),
            Entry(1.5, transcript.PROCESS, "listening", "80", 1.5),
            Entry(1.5, 12, "lost", "", 1.5),
        ):
            line = entry.encode()
            self.assertEqual(line.count(b"\n"), 1)
            self.assertEqual(Entry.decode(line[:-1]), entry)

    def test_consecutiveDataIsOneEntry(self) -> None:
        entries = [Entry(float(at), 0, kind, about, float(at)) for at, (kind, about) in enumerate((
            ("made", ""), ("data", "1 0"), ("data", "2 0"), ("does", "pause"), ("data", "3 0"), ("lost", "x"),
        ))]  # fmt: skip
        self.assertEqual(
            [(entry.kind, entry.about, entry.since, entry.at) for entry in joined(entries)],
            [("made", "", 0, 0), ("data", "2 0", 1, 2), ("does", "pause", 3, 3), ("data", "3 0", 4, 4),
             ("lost", "x", 5, 5)],
        )  # fmt: skip
