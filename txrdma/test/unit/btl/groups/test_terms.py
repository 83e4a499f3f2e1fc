"""Terms of a member of a group: its environment, and its keys."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl.groups.terms import GroupTerms, KEY_LENGTH, makeKeys, MOST_MEMBERS, PREFIX
from txrdma.error import InvalidRequest

KEYS = makeKeys(3)


class TermsTests(SynchronousTestCase):
    def test_keys(self) -> None:
        """Each pair of members has its own key, which both members know."""
        keys = makeKeys(4)
        self.assertEqual([len(each) for each in keys], [5] * 5)
        for here in range(5):
            for there in range(5):
                self.assertEqual(keys[here][there], keys[there][here])
        self.assertEqual(len({key for each in keys for key in each}), 15)

    def test_environment(self) -> None:
        """Terms are decoded as they were encoded into the environment; their repr contains no keys."""
        terms = GroupTerms(1, 3, "127.0.0.1", 4000, KEYS[1])
        self.assertEqual(GroupTerms.fromEnvironment(terms.environment()), terms)
        self.assertEqual({len(each) for each in KEYS[1]}, {KEY_LENGTH})
        self.assertNotIn("keys", repr(terms))
        self.assertIsNone(GroupTerms.fromEnvironment({}))

    def test_invalid(self) -> None:
        given = GroupTerms(1, 3, "127.0.0.1", 4000, KEYS[1]).environment()
        for name, value in (
            ("RANK", "3"),
            ("RANK", "x"),
            ("SIZE", "2"),
            ("RENDEZVOUS", "host"),
            ("KEYS", "AAAA"),
            ("KEYS", "!"),
        ):
            self.assertRaises(InvalidRequest, GroupTerms.fromEnvironment, {**given, PREFIX + name: value})
        del given[PREFIX + "KEYS"]
        self.assertRaises(InvalidRequest, GroupTerms.fromEnvironment, given)

    def test_mostMembers(self) -> None:
        keys = tuple([bytes(KEY_LENGTH)] * (MOST_MEMBERS + 2))
        GroupTerms(0, MOST_MEMBERS, "", 0, keys[1:])
        self.assertRaises(InvalidRequest, GroupTerms, 0, MOST_MEMBERS + 1, "", 0, keys)

    def test_keysOfTooManyMembers(self) -> None:
        """Keys are made only for groups that can exist."""
        self.assertEqual(len(makeKeys(MOST_MEMBERS)), MOST_MEMBERS + 1)
        for size in (-1, 0, MOST_MEMBERS + 1, 1 << 40):
            self.assertRaises(InvalidRequest, makeKeys, size)
