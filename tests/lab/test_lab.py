"""The caches of the lab."""

from __future__ import annotations

from regard.lab.lab import LRUCache


def test_last_item_always_stays() -> None:
    cache: LRUCache[str] = LRUCache(4, len)
    for name in ("aa", "bb", "cc", "toolong"):
        cache.put(name, name)
        assert cache.get(name) == name
    assert cache.get("cc") is None and cache.used == 7
