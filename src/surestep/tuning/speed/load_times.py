"""Measures what loading samples takes in one process: decoding, the rest, collating, copying."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from surestep.base.text import format_duration
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.data.sources import InMemory, MapStyleSource, batched_getter
from surestep.engine.device import wait_for
from surestep.engine.rng import preserve_rng

# Functions that decode images and sound, by module; a program may have imported them by name.
_DECODERS = {
    "PIL.Image": ("open",),
    "cv2": ("imread", "imdecode"),
    "imageio.v2": ("imread",),
    "imageio.v3": ("imread",),
    "torchvision.io.image": ("decode_image", "decode_jpeg", "decode_png", "decode_webp"),
    "torchaudio": ("load",),
    "soundfile": ("read",),
}
_MOST_SAMPLES = 64  # that are loaded


@dataclass(frozen=True)
class LoadTimes:
    """Seconds that loading the samples of a step takes in one process.

    Attributes:
        decoding_s: in decoders of Pillow, OpenCV, torchvision, imageio, torchaudio and soundfile.
        samples_s: in the rest of the dataset, such as augmentation.
        collating_s: making micro-batches of samples.
        copying_s: copying them to the device.
    """

    decoding_s: float
    samples_s: float
    collating_s: float
    copying_s: float

    def describe(self) -> str:
        """Return the times as a part of a sentence."""
        names = {
            "decoding": self.decoding_s,
            "the rest of the dataset": self.samples_s,
            "collating": self.collating_s,
            "copying": self.copying_s,
        }
        parts = [f"{name} {format_duration(seconds)}" for name, seconds in names.items()]
        return f"{', '.join(parts)}, in one process"


def measure_loading(loader: BatchLoader) -> tuple[LoadTimes | None, str]:
    """Load some samples of the first epoch in this process; draws change no generator.

    Args:
        loader: of the training data.

    Returns:
        The times of a step on this rank; None, and why, if its samples are not loaded one by one.
    """
    source, layout = loader.source, loader.layout
    if isinstance(source, InMemory) or (
        isinstance(source, MapStyleSource) and isinstance(source.dataset, InMemory)
    ):
        return None, "they are rows of tensors in memory"
    if not isinstance(source, MapStyleSource):
        return None, "a stream is read once, so its reading is not timed apart"
    positions = range(min(layout.micro_batch_size, _MOST_SAMPLES, len(source)))
    order = loader.epoch_order(0)
    rows = [position if order is None else int(order[position]) for position in positions]
    collate, raw = source.collate, source.load(order, positions)
    with preserve_rng():
        decoding_s, samples_s, samples = _time_samples(source.dataset, rows)
        started = time.perf_counter()
        collate(samples)
        collating_s = time.perf_counter() - started
    micro = loader.micro_batch(raw, 0, len(rows))
    wait_for(loader.device)
    started = time.perf_counter()
    loader.move_micro(micro)
    wait_for(loader.device)
    copying_s = time.perf_counter() - started if loader.device.type != "cpu" else 0.0
    times = (decoding_s, samples_s - decoding_s, collating_s, copying_s)
    scale = layout.batch_size / layout.ranks / len(rows)
    return LoadTimes(*(seconds * scale for seconds in times)), ""


def _time_samples(dataset: Any, rows: list[int]) -> tuple[float, float, list[Any]]:
    """Return the seconds of decoding, those of loading all samples, and the samples."""
    get_many = batched_getter(dataset)
    with _time_decoders() as read_decoding_s:
        started = time.perf_counter()
        samples = get_many(rows) if get_many is not None else [dataset[row] for row in rows]
        return read_decoding_s(), time.perf_counter() - started, samples


@contextmanager
def _time_decoders() -> Iterator[Callable[[], float]]:
    """Time the calls of decoders, wherever a module has them; yield what returns the seconds."""
    total_s, depth = 0.0, 0

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal total_s, depth
            started, depth = time.perf_counter(), depth + 1
            try:
                return function(*args, **kwargs)
            finally:
                depth -= 1
                total_s += time.perf_counter() - started if not depth else 0.0

        return call

    with ExitStack() as stack:
        for owner, name in _list_decoders():
            function = getattr(owner, name)
            setattr(owner, name, timed(function))
            stack.callback(setattr, owner, name, function)
        yield lambda: total_s


def _list_decoders() -> list[tuple[Any, str]]:
    """Return the modules, and Pillow's class, that have a decoder, with its name there."""
    decoders = {
        id(function)
        for home, names in _DECODERS.items()
        for name in names
        if (function := getattr(sys.modules.get(home), name, None)) is not None
    }
    found: list[tuple[Any, str]] = [
        (module, name)
        for module in list(sys.modules.values())
        for name, value in list(getattr(module, "__dict__", {}).items())
        if id(value) in decoders
    ]
    pillow = sys.modules.get("PIL.ImageFile")
    # Pillow decodes an image when its pixels are first needed.
    return found if pillow is None else [*found, (pillow.ImageFile, "load")]
