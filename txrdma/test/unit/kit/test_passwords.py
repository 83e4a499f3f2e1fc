"""Hashes of passwords, and accounts."""

from __future__ import annotations

import hashlib

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import InvalidRequest
from txrdma.kit.passwords import Account, MOST_MEMORY, PasswordHash, UserRole
from txrdma.test.support import slow

PASSLIB = "$scrypt$ln=16,r=8,p=1$aM15713r3Xsvxbi31lqr1Q$nFNh2CVHVjNldFVKDHDlm4CbdRSCdEBsjjJxD+iCs5E"
"""The hash of "password" in the documentation of passlib."""

RFC7914 = (
    "$scrypt$ln=10,r=8,p=16$TmFDbA$/bq+HJ00cgB4VucZDQHp/nxq18vII3"
    "gw53N2Y0s3MWIurzDZLiKjiG/xCSedmDDaxyevuUqD7m2DYMvfoswGQA"
)
"""The vector of RFC 7914, 12, for "password" and the salt "NaCl"."""


class PasswordHashTests(SynchronousTestCase):
    def test_passlib(self) -> None:
        """Hashes that other programs have made are understood."""
        known = PasswordHash.fromText(PASSLIB)
        self.assertTrue(known.matches(b"password"))
        self.assertFalse(known.matches(b"Password"))
        self.assertEqual(str(known), PASSLIB)

    def test_vector(self) -> None:
        """The test vector of RFC 7914."""
        self.assertTrue(PasswordHash.fromText(RFC7914).matches(b"password"))

    def test_new(self) -> None:
        """Each hash has a salt of its own, and can be read again."""
        first, second = (PasswordHash.of("pässword".encode(), 4) for _ in range(2))
        self.assertNotEqual(first, second)
        for one in (first, second):
            self.assertEqual(PasswordHash.fromText(str(one)), one)
            self.assertTrue(one.matches("pässword".encode()))

    def test_invalid(self) -> None:
        """Invalid hashes, and parameters that need more memory than the limit, are refused."""
        beyond = (MOST_MEMORY // (8 * 128)).bit_length()
        PasswordHash.fromText(PASSLIB.replace("ln=16", f"ln={beyond - 1}"))
        for text in (
            *("", "$scrypt$", PASSLIB[1:], f"{PASSLIB}:", PASSLIB.replace("ln=16", "ln=0")),
            *(
                PASSLIB.replace("ln=16", f"ln={beyond}"),
                PASSLIB.replace("ln=16", "ln=30"),
                PASSLIB.replace("r=8", "r=99"),
                PASSLIB.replace("p=1", "p=0"),
            ),
            *(PASSLIB.replace("16,", "16;"), "$scrypt$ln=14,r=8,p=1$AAAAA$" + "A" * 43),
        ):
            self.assertRaises(InvalidRequest, PasswordHash.fromText, text)


class AccountTests(SynchronousTestCase):
    @slow("hashes of passwords are slow by design")
    def test_lines(self) -> None:
        """A line has a hash and perhaps a role."""
        for text, role in (
            (PASSLIB, UserRole.VIEWER),
            (f"{PASSLIB}:viewer", UserRole.VIEWER),
            (f"{PASSLIB}:operator", UserRole.OPERATOR),
        ):
            account = Account.fromText(text.encode())
            self.assertEqual(account.role, role, text)
            self.assertTrue(account.matches(b"password"), text)
            self.assertFalse(account.matches(b"wrong"), text)
        for text in ("", "pass:operator", f"{PASSLIB}:root", f"{PASSLIB}:", "$scrypt$x"):
            self.assertRaises(InvalidRequest, Account.fromText, text.encode())

    def test_plainText(self) -> None:
        """The error about a password as plain text, with or without a colon, repeats nothing of it."""
        for text in ("secret", "pass:secret", "secret:viewer", "$scrypt$:secret"):
            error = str(self.assertRaises(InvalidRequest, Account.fromText, text.encode()))
            self.assertIn("not a hash", error)
            self.assertNotIn("secret", error)

    def test_known(self) -> None:
        """After the slow comparison a fast one is enough, for the right password only."""
        account = Account.fromText(PASSLIB.encode())
        self.assertFalse(account.isKnown(b"password"))
        self.assertFalse(account.matches(b"wrong"))
        self.assertFalse(account.isKnown(b"wrong"))
        self.assertTrue(account.matches(b"password"))
        self.patch(hashlib, "scrypt", None)
        self.assertTrue(account.isKnown(b"password"))
        self.assertFalse(account.isKnown(b"wrong"))
