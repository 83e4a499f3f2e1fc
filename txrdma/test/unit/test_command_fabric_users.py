"""
C{txrdma fabric-users}.
"""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from twisted.cred.credentials import UsernamePassword
from twisted.internet.defer import Deferred
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from txrdma.command import TxrdmaOptions
from txrdma.commands import fabric_users
from txrdma.commands.fabric_users import FEWEST_CHARACTERS
from txrdma.error import InvalidRequest
from txrdma.kit.passwords import User, UserRole
from txrdma.kit.webaccess import readAccess
from txrdma.test.support.mad.commanding import Terminal


class CommandTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.file = Path(self.mktemp())

    def run_(self, *words: str, typed: str = "") -> str:
        """Run the command with a text as its standard input; return what it prints."""
        options = TxrdmaOptions()
        options.parseOptions(["fabric-users", "--file", str(self.file), *words])
        self.patch(sys, "stdin", io.StringIO(typed))
        out = io.StringIO()
        with redirect_stdout(out):
            self.successResultOf(Deferred.fromCoroutine(fabric_users.run(None, options.subOptions)))
        return out.getvalue()

    def loggedIn(self, name: str, password: str) -> User:
        access = readAccess("", str(self.file))
        done = access.requestAvatarId(UsernamePassword(name.encode(), password.encode()))
        user: User = self.successResultOf(done)
        return user

    def test_add(self) -> None:
        """A new file is readable by its owner only, has no password, and lets its users in."""
        self.assertEqual(self.run_("add", "alice", "--role", "operator", typed="right one\n"), "")
        self.run_("add", "bob", typed="right two\n")
        self.assertEqual(self.file.stat().st_mode & 0o777, 0o600)
        self.assertNotIn("right", self.file.read_text())
        self.assertEqual(self.loggedIn("alice", "right one"), User("alice", UserRole.OPERATOR))
        self.assertEqual(self.loggedIn("bob", "right two"), User("bob", UserRole.VIEWER))
        self.run_("add", "alice", typed="another one\n")
        self.assertEqual(self.loggedIn("alice", "another one"), User("alice", UserRole.VIEWER))
        self.assertEqual(len(self.file.read_text().splitlines()), 2)

    def test_hashes(self) -> None:
        """Each user has a hash by scrypt with a salt of its own, even for equal passwords."""
        for name in ("alice", "bob"):
            self.run_("add", name, typed="right one\n")
        hashes = [line.split(":")[1] for line in self.file.read_text().splitlines()]
        parts = [each.split("$") for each in hashes]
        self.assertEqual([each[:2] for each in parts], [["", "scrypt"]] * 2)
        for one, other in zip(*(each[3:] for each in parts), strict=True):  # salt and hash
            self.assertNotEqual(one, other)
        self.assertEqual(len(parts[0]), 5)

    def test_terminal(self) -> None:
        """On a terminal the password is asked for twice, without an echo."""
        asked: list[str] = []
        answers = ["right one", "wrong one", "right one", "right one"]

        def getpass(prompt: str) -> str:
            asked.append(prompt)
            return answers.pop(0)

        self.patch(fabric_users, "getpass", getpass)
        self.patch(io, "StringIO", Terminal)
        self.assertRaises(InvalidRequest, self._failing, "add", "alice")
        self.assertFalse(self.file.exists())
        self.run_("add", "alice")
        self.assertEqual(asked, ["Password of alice: ", "Again: "] * 2)
        self.assertEqual(self.loggedIn("alice", "right one").name, "alice")

    def _failing(self, *words: str, typed: str = "") -> None:
        options = TxrdmaOptions()
        options.parseOptions(["fabric-users", "--file", str(self.file), *words])
        self.patch(sys, "stdin", io.StringIO(typed))
        failure = self.failureResultOf(Deferred.fromCoroutine(fabric_users.run(None, options.subOptions)))
        failure.raiseException()

    def test_permissions(self) -> None:
        """Others, and another group, cannot read a file that they could read before; a link remains one."""
        link, real = self.file, Path(self.mktemp())
        real.write_text("# ours\n")
        os.chmod(real, 0o644)
        link.symlink_to(real.resolve())
        self.run_("add", "alice", typed="right one\n")
        self.assertTrue(link.is_symlink())
        self.assertEqual(real.stat().st_mode & 0o777, 0o640)
        self.assertEqual(self.loggedIn("alice", "right one"), User("alice"))
        if os.getuid():
            return  # only root can have the file of a group that it does not belong to
        os.chown(real, 1, 1)
        self.run_("add", "bob", typed="right two\n")
        known = real.stat()
        self.assertEqual((known.st_uid, known.st_gid, known.st_mode & 0o777), (1, 1, 0o640))

        def refused(*arguments: object) -> None:
            raise PermissionError

        self.patch(os, "fchown", refused)
        self.run_("add", "carol", typed="right three\n")
        self.assertEqual(real.stat().st_mode & 0o777, 0o600)

    def test_characters(self) -> None:
        """The file is UTF-8, also with a byte order mark."""
        self.file.write_text("\ufeff# ours\n")
        name = "j\N{LATIN SMALL LETTER O WITH DIAERESIS}rg"
        self.run_("add", name, typed="right one\n")
        self.assertTrue(self.file.read_bytes().startswith(f"# ours\n{name}:".encode()))

    def test_role(self) -> None:
        """A role changes without the password; a user can be removed."""
        self.run_("add", "alice", typed="secret phrase\n")
        self.run_("role", "alice", "operator")
        self.assertEqual(self.loggedIn("alice", "secret phrase").role, UserRole.OPERATOR)
        for words in (("role", "bob", "viewer"), ("remove", "bob")):
            with self.assertRaisesRegex(InvalidRequest, "no user bob"):
                self._failing(*words)
        self.run_("remove", "alice")
        self.assertEqual(self.file.read_text(), "")

    def test_plainText(self) -> None:
        """The role of a user whose password is plain text is not changed; a new password replaces it."""
        self.file.write_text("alice:pass:word\n")
        os.chmod(self.file, 0o600)
        with self.assertRaisesRegex(InvalidRequest, "alice: not a hash"):
            self._failing("role", "alice", "operator")
        self.assertEqual(self.file.read_text(), "alice:pass:word\n")
        self.run_("add", "alice", typed="right one\n")
        self.assertEqual(self.loggedIn("alice", "right one"), User("alice"))

    def test_show(self) -> None:
        """Users are listed with their roles."""
        self.run_("add", "alice", "-r", "operator", typed="right one\n")
        self.run_("add", "bob", typed="right two\n")
        shown = self.run_()
        self.assertEqual(
            [line.split()[:2] for line in shown.splitlines()][1:], [["alice", "operator"], ["bob", "viewer"]]
        )
        found: list[dict[str, Any]] = json.loads(self.run_("--json"))
        self.assertEqual(found[1], {"name": "bob", "role": "viewer"})

    def test_refused(self) -> None:
        """Short passwords, missing files, and invalid lines and names are refused."""
        with self.assertRaisesRegex(InvalidRequest, f"{FEWEST_CHARACTERS} characters"):
            self._failing("add", "alice", typed="short\n")
        with self.assertRaisesRegex(InvalidRequest, "add NAME"):
            self._failing("show")
        self.file.write_text("alice\n")
        with self.assertRaisesRegex(InvalidRequest, "line 1"):
            self._failing("show")
        for words in (
            *(("delete", "alice"), ("add",), ("add", "a:b"), ("add", "#a"), ("add", " a"), ("add", "x" * 65)),
            *(("role", "alice", "root"), ("add", "alice", "--role", "root"), ("show", "--role", "viewer")),
            ("--file", "", "show"),
        ):
            self.assertRaises(UsageError, TxrdmaOptions().parseOptions, ["fabric-users", *words])
