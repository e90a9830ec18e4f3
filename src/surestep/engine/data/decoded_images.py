"""Images that Pillow decodes, kept decoded, so that each file is decoded once in a run.

While a dataset loads samples, `PIL.Image.open` opens a file as usual: mode, size, `info` and EXIF
are read from it. Only its decoder is replaced when the pixels are loaded: they are copied from
memory if this file was decoded before, by any worker. What a program does to an image before that
and what decides its pixels, such as `draft()`, has the file decoded.
"""

import io
import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any
from weakref import WeakValueDictionary

from PIL import Image, ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile

from surestep.base.text import format_bytes, format_count
from surestep.base.warn import warn
from surestep.engine.data.shared_store import KEY, SharedStore

# Modes whose bytes have all of an image; a palette is in the head of the file.
_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16")
_COPY = "surestep_copy"  # a decoder
_INEXACT_S = 2.0  # by which the time of a change may be wrong: FAT has steps of 2 s
_REQUEST = "_surestep_request"  # an attribute of an image that is opened and not loaded
_stores: "WeakValueDictionary[int, SharedStore]" = WeakValueDictionary()


class DecodedImages:
    """Decoded images in memory, shared by all data workers of a process and all its loaders.

    Args:
        size: bytes of memory; an image that does not fit is decoded each time.
    """

    def __init__(self, size: int) -> None:
        store = _stores.get(size)
        if store is None:
            _stores[size] = store = SharedStore(size)
        self.store = store
        self._has_warned = False

    def warn_of_rest(self, part: str) -> None:
        """Warn once, after an epoch, if nothing is kept, or not everything."""
        if self._has_warned:
            return
        kept, size = len(self.store), format_bytes(self.store.size)
        if not kept:
            warn(
                f"data.keep_decoded keeps nothing of the {part} data: no JPEG or PNG file was "
                "opened by PIL.Image.open() while samples were loaded, or each was changed less "
                f"than {_INEXACT_S:g} s before. Leave it out, or open images as "
                "PIL.Image.open(path)."
            )
        elif self.store.is_full:
            warn(
                f"data.keep_decoded: {format_count(kept, 'image')} fill {size}, and the others "
                "are decoded each time. Set more memory, if there is more."
            )
        self._has_warned = not kept or self.store.is_full

    @contextmanager
    def use(self) -> Iterator[None]:
        """Have `PIL.Image.open` return images that are kept, in this process."""
        pillow_open = Image.open

        def open_image(fp: Any, *args: Any, **kwargs: Any) -> Any:
            image = pillow_open(fp, *args, **kwargs)
            if not _is_file(fp) or type(image) not in _KINDS or not _is_single(image):
                return image
            if (key := _identify(image)) is not None:
                vars(image)[_REQUEST] = self.store, key, _describe(image)
                image.__class__ = _KINDS[type(image)]
            return image

        Image.register_decoder(_COPY, _Copy)
        Image.open = open_image
        try:
            yield
        finally:
            Image.open = pillow_open


def _is_file(fp: Any) -> bool:
    """Return whether an image is opened by its path, or in an open file, which starts with it."""
    if isinstance(fp, (str, bytes, os.PathLike)):
        return True
    return type(fp) is io.BufferedReader and type(fp.raw) is io.FileIO


def _is_single(image: Any) -> bool:
    """Return whether one decoder decodes all of an image, into a mode whose bytes are known."""
    is_animated = getattr(image, "is_animated", False)
    return len(image.tile) == 1 and image.mode in _MODES and not is_animated


def _identify(image: Any) -> bytes | None:
    """Return the key of an open file, which differs once the file has changed.

    Return None if it may change again without a trace, since the times of a file are not exact.
    """
    found, name = os.fstat(image.fp.fileno()), image.fp.name
    changed_s = max(found.st_mtime, found.st_ctime)
    if not stat.S_ISREG(found.st_mode) or time.time() - changed_s < _INEXACT_S:
        return None
    known = (
        name if isinstance(name, int) else os.path.abspath(name),
        *(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns),
        ImageFile.LOAD_TRUNCATED_IMAGES,
    )
    return blake2b(repr(known).encode(), digest_size=KEY).digest()


def _describe(image: Any) -> tuple[Any, ...]:
    """Return what decides the pixels of an image that is not loaded."""
    return image.fp, image.mode, image.size, list(image.tile), image.decoderconfig


class _Copy(ImageFile.PyDecoder):
    """A decoder that copies an image which was decoded before: `args` begins with its bytes."""

    def decode(self, buffer: Any) -> tuple[int, int]:
        """Copy all of it, whatever was read of the file."""
        self.set_as_raw(self.args[0])
        return -1, 0


def _load(image: Any) -> Any:
    """Load an image as its class does, with its pixels copied if this file was decoded before."""
    store, key, described = vars(image).pop(_REQUEST)
    image.__class__ = type(image).__base__
    if _describe(image) != described:
        return image.load()
    if (pixels := store.find(key)) is not None:
        _, extents, offset, _ = image.tile[0]
        image.tile = [(_COPY, extents, offset, (pixels,))]
        return image.load()
    loaded = image.load()
    store.add(key, image.tobytes())
    return loaded


def _reduce(image: Any, protocol: Any) -> Any:
    """Pickle or copy an image as one that is loaded, which it would be by that."""
    image.load()
    return image.__reduce_ex__(protocol)


class _Jpeg(JpegImageFile):
    """A JPEG file that is opened and not loaded; then its class is JpegImageFile again."""

    load, __reduce_ex__ = _load, _reduce


class _Png(PngImageFile):
    """The same of a PNG file."""

    load, __reduce_ex__ = _load, _reduce


_KINDS: Mapping[type[Any], type[Any]] = {JpegImageFile: _Jpeg, PngImageFile: _Png}
