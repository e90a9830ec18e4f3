"""What the program has changed of its data since data workers began with a copy of it.

A worker that persists keeps the copy with which it began. So before each pass, what the dataset
holds is compared with what was in it then: attributes, elements, closures and globals, as far as
`search_objects` goes. Of an object of a library that is not in Python, only whether it is the same
object is seen.
"""

import mmap
from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from enum import Enum
from itertools import zip_longest
from operator import is_
from typing import Any
from weakref import ref
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from surestep.base.warn import warn
from surestep.engine.buffers import version_of
from surestep.engine.object_search import MEMBERS, Root, members_of, search_objects
from surestep.engine.own_generators import HOOK, is_generator

# Bytes of one array that are compared; of a larger one as many, spread over it. And of all arrays.
_OF_ARRAY, _OF_ALL = 2**24, 2**27
_LISTED = 2**12  # arrays of a list that are compared
# Not None: a generator, which is not compared, may be created later.
_VALUES = (str, bytes, int, float, complex, Enum, range, slice, np.generic)
_CONTAINERS = (list, tuple, deque, set, frozenset, Mapping)
_ARRAYS = (Tensor, np.ndarray)
Contents = list[tuple[str, Any]]  # paths, each with what is there: something to compare


def find_change(before: Contents, now: Contents) -> str:
    """Return the path to the first thing that differs, such as "dataset.stage"; "" if none does."""
    for one, other in zip_longest(before, now, fillvalue=("", None)):
        if one != other:
            return other[0] or one[0]
    return ""


def warn_of_change(path: str, part: str, epoch: int, method: str) -> None:
    """Warn of what new workers load with, which are started by a method such as "fork"."""
    if part != "train" and method == "fork":
        return  # an evaluation without workers would read the same
    when = f"epoch {epoch + 1}" if part == "train" else "this evaluation"
    text = (
        f"The program changed {path} while data workers had a copy of the {part} data. New "
        f"workers load with it from {when} on; without workers it counts from the next sample on. "
        "If it changes again, that is not reported."
    )
    if method != "fork":
        text += (
            f" They are started by {method!r} and import their modules again, so a global or an "
            "attribute of a class does not reach them: set an attribute of the object."
        )
    if part == "train":
        text += (
            " A resumed run begins with the data as the program makes it. If the change depends "
            "on the epoch, give the dataset a method set_epoch(epoch): each process calls it."
        )
    warn(text)


def list_contents(*roots: Root) -> Contents:
    """List what objects hold now; each root is the name of an object, and the object.

    It takes some milliseconds, and the large arrays 30 ms more at most.
    """
    found: Contents = []
    arrays = _Arrays()

    def add(path: str, value: Any) -> None:
        if isinstance(value, _ARRAYS):
            found.append((path, arrays.describe(value)))
        elif isinstance(value, _VALUES):
            found.append((path, (type(value), value)))
        elif isinstance(value, bytearray):
            found.append((path, arrays.describe(np.asarray(memoryview(value)))))

    def visit(path: str, value: Any, depth: int) -> bool:
        if is_generator(value) and not hasattr(type(value), HOOK):
            return False  # it is seeded for each sample
        found.append((path, _identify(value)))
        for at, member in members_of(value):
            add(path + at, member)
        if isinstance(value, _CONTAINERS):
            elements = _Elements(value)
            found.append((path, elements))
            for index, member in elements.list_arrays():
                add(f"{path}[{index}]", member)
        for name, column in _columns(value):
            add(f"{path}[{name!r}]", column)
        return True

    for name, root in roots:
        add(name, root)
    search_objects(roots, visit)
    return found


class _Elements:
    """The elements of a container, which equal others if they are the same objects."""

    def __init__(self, container: Any) -> None:
        if isinstance(container, Mapping):
            self.objects = (*container.keys(), *container.values())
        else:
            self.objects = tuple(container)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Elements) or len(self.objects) != len(other.objects):
            return False
        return all(map(is_, self.objects, other.objects))

    __hash__ = None  # type: ignore[assignment]

    def list_arrays(self) -> Iterator[tuple[int, Any]]:
        """Yield the arrays with their index; of a long list, some that are spread over it."""
        if any(isinstance(member, _ARRAYS) for member in self.objects[-MEMBERS:]):
            for index in range(0, len(self.objects), 1 + len(self.objects) // _LISTED):
                yield index, self.objects[index]


class _Reference:
    """An object, which equals only itself while it lives."""

    def __init__(self, value: Any) -> None:
        self.reference = ref(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reference) and self.reference() is other.reference()

    __hash__ = None  # type: ignore[assignment]


class _Value:
    """An object that cannot be referenced weakly, such as a Path: it equals one of equal value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Value) or type(self.value) is not type(other.value):
            return False
        if self.value is other.value:
            return True
        # One that cannot be hashed may compare large contents.
        return isinstance(self.value, Hashable) and (self.value == other.value) is True

    __hash__ = None  # type: ignore[assignment]


def _identify(value: Any) -> Any:
    try:
        return _Reference(value)
    except TypeError:
        # The elements of a container are compared.
        return type(value) if isinstance(value, _CONTAINERS) else _Value(value)


def _columns(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the columns of a DataFrame, or what a Series holds: neither is in their attributes."""
    if not (hasattr(value, "iloc") and hasattr(value, "to_numpy")) or isinstance(value, type):
        return
    if value.ndim == 1:
        yield value.name, value.to_numpy()
        return
    for name, column in value.items():
        yield name, column.to_numpy()


class _Arrays:
    """Describes arrays by address, shape, version and checksum, within a limit for all of them."""

    def __init__(self) -> None:
        self._left = _OF_ALL

    def describe(self, array: Any) -> tuple[Any, ...]:
        """Return what differs if the array was replaced, or written to."""
        if isinstance(array, Tensor):
            return self._describe_tensor(array)
        place = array.ctypes.data, array.shape, array.strides, array.dtype
        if _is_mapped(array):
            return place  # workers read the same file
        return (*place, self._sum(array, array.nbytes))

    def _describe_tensor(self, tensor: Tensor) -> tuple[Any, ...]:
        if tensor.layout is not torch.strided or tensor.is_quantized:
            return tensor.layout, tensor.shape, version_of(tensor)
        place = tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
        if tensor.device.type != "cpu":
            return (*place, version_of(tensor))
        if tensor.is_shared():
            return place  # workers read the same memory
        with torch.no_grad():
            flat = tensor.detach().resolve_conj().resolve_neg()
        if not flat.is_contiguous():
            return (*place, version_of(tensor))
        flat = flat.reshape(-1).view(torch.uint8)
        return (*place, version_of(tensor), self._sum(flat.numpy(), flat.nbytes))

    def _sum(self, array: Any, size: int) -> int:
        """Return a checksum; of a large array, of rows that are spread over it."""
        allowed = min(_OF_ARRAY, self._left)
        if size > allowed and len(array):
            array = array[:: -(-len(array) // max(1, allowed * len(array) // size))]
        self._left = max(0, self._left - array.nbytes)
        return crc32(array.tobytes())


def _is_mapped(array: Any) -> bool:
    """Return whether an array is in a file that is mapped into memory."""
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return True
        array = array.base
    return isinstance(array, mmap.mmap)
