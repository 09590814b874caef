"""The caches of the lab."""

from __future__ import annotations

from regard.lab.lab import Kept


def test_the_last_is_always_kept() -> None:
    kept: Kept[str] = Kept(4, len)
    for name in ("aa", "bb", "cc", "toolong"):
        kept.put(name, name)
        assert kept.get(name) == name
    assert kept.get("cc") is None and kept.taken == 7
