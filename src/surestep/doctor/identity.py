"""A weak dictionary that compares its keys by identity."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, MutableMapping
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class IdentityDict(MutableMapping[Key, Value]):
    """A WeakKeyDictionary whose keys need no hash, as those of classes that define equality."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Key], Value]] = {}

    def __getitem__(self, key: Key) -> Value:
        return self._entries[id(key)][1]

    def __setitem__(self, key: Key, value: Value) -> None:
        entries, number = self._entries, id(key)
        entries[number] = weakref.ref(key, lambda _: entries.pop(number, None)), value

    def __delitem__(self, key: Key) -> None:
        del self._entries[id(key)]

    def __iter__(self) -> Iterator[Key]:
        for reference, _ in list(self._entries.values()):
            key = reference()
            if key is not None:
                yield key

    def __len__(self) -> int:
        return len(self._entries)
