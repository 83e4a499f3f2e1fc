"""Vocabulary of InfiniBand and RoCE: types, paths, headers, packets and captures."""
