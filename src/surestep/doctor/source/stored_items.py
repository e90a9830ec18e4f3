"""What a script stored in a mapping under a name: `outputs["loss"] = loss`."""

from __future__ import annotations

from collections import defaultdict

from surestep.doctor.source.recorder import Recorder
from surestep.doctor.source.trace import Branch
from surestep.doctor.source.values import Constant, Value, join


class StoredItems:
    """The values that were stored, by the mapping and the name, which is a string.

    Args:
        recorder: of the trace: a value that was stored in a branch may not be there after it.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._stored: dict[tuple[Value, str], list[tuple[tuple[Branch, ...], Value]]]
        self._stored = defaultdict(list)

    def store(self, mapping: Value, index: Value, value: Value) -> None:
        """Remember a value; an index that is not known may be any name."""
        if isinstance(index, Constant) and isinstance(index.value, str):
            self._stored[mapping, index.value].append((self._recorder.position.branches, value))
        elif not isinstance(index, Constant):
            for key in [key for key in self._stored if key[0] is mapping]:
                del self._stored[key]

    def load(self, mapping: Value, index: Value, before: Value) -> Value:
        """Return what is under a name.

        Args:
            mapping: that is indexed.
            index: into it.
            before: what it holds if nothing was stored.
        """
        if not (isinstance(index, Constant) and isinstance(index.value, str)):
            return before
        branches, found = self._recorder.position.branches, []
        for around, value in reversed(self._stored.get((mapping, index.value), [])):
            found.append(value)
            if around == branches[: len(around)]:
                return join(*found) or value
        return join(*found, before) or before
