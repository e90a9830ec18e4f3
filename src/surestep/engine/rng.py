"""Seeds: random numbers depend on the position in the run, not on earlier draws.

Four things are random. Before each of them, the generators are seeded from its position:

- the order of an epoch: `derive_seed("order", seed, epoch)`
- loading a sample: `derive_seed("load", seed, epoch, position)`
- a transform of a global batch: `derive_seed("transform", seed, step)`
- the model and the loss, such as dropout: `derive_seed("model", seed, step, first_position)`

A manual step may iterate over a batch several times. Its seeds are
`derive_seed("model", seed, step, first_position, pass_index)`, and those of `manual_step.randn`
`derive_seed("noise", seed, step, pass_index, call)`.

So no generator state is saved, evaluations and callbacks do not change the training, the number of
workers does not matter, and any step can be repeated.
"""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

# numpy's stubs do not export them.
from numpy.random import get_bit_generator, set_bit_generator  # type: ignore[attr-defined]

from surestep.engine.global_rng import GlobalGenerators, preserve_globals


def derive_seed(*place: str | int) -> int:
    """Derive a 63-bit seed from values such as `derive_seed("order", seed, epoch)`.

    It is blake2b with a digest of 8 bytes (little-endian) over the values as text joined by spaces,
    without the lowest bit. Similar values give unrelated seeds.

    Example:
        >>> import surestep
        >>> surestep.derive_seed("order", 0, 1) == surestep.derive_seed("order", 0, 1)
        True
        >>> surestep.derive_seed("order", 0, 1) == surestep.derive_seed("order", 0, 2)
        False
    """
    words = " ".join(map(str, place)).encode()
    return int.from_bytes(blake2b(words, digest_size=8).digest(), "little") >> 1


@lru_cache(maxsize=8)
def _hash_of_epoch(seed: int, epoch: int) -> blake2b:
    return blake2b(f"load {seed} {epoch} ".encode(), digest_size=8)


def derive_load_seed(seed: int, epoch: int, position: int) -> int:
    """Return `derive_seed("load", seed, epoch, position)` in half the time, once per sample."""
    hashed = _hash_of_epoch(seed, epoch).copy()
    hashed.update(str(position).encode())
    return int.from_bytes(hashed.digest(), "little") >> 1


def set_seed(seed: int, *, deterministic: bool = False) -> None:
    """Seed Python's, numpy's and torch's generators, on every device.

    Args:
        seed: an integer from 0 to 2**63 - 1.
        deterministic: also use torch's deterministic algorithms, for cudnn and cuBLAS too; an
            operation without one then raises RuntimeError.

    Source: https://docs.pytorch.org/docs/stable/notes/randomness.html
    """
    random.seed(seed)
    clear_numpy_gauss_cache()  # np.random.seed forgets it for numpy's usual bit generator only
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    if deterministic:
        use_deterministic_algorithms()


def use_deterministic_algorithms() -> None:
    """Choose torch's deterministic algorithms, for cudnn and cuBLAS too."""
    # cuBLAS reads this when its first handle is made.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def clear_numpy_gauss_cache() -> None:
    """Drop the second of a pair of gaussians that numpy's global generator has stored.

    Loading without workers drops it too, so this process draws the same numbers with workers.
    """
    set_bit_generator(get_bit_generator())


def seed_loading(seed: int) -> None:
    """Seed what a dataset may draw from; 90 us faster than `torch.manual_seed`."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def reset_numpy_bit_generator() -> None:
    """Use numpy's default bit generator in a worker, whichever the program has set."""
    set_bit_generator(np.random.MT19937(0))


_SPARE: list[np.random.MT19937] = []


class preserve_rng:
    """Preserve the generators of this process while a dataset draws; seed them first.

    numpy draws by a different bit generator meanwhile: to copy and restore its state takes 70 us.
    What is lost is what `clear_numpy_gauss_cache` drops.
    """

    def __enter__(self) -> None:
        self._bits = get_bit_generator()
        self._own = _SPARE.pop() if _SPARE else np.random.MT19937(0)
        set_bit_generator(self._own)
        self._kept = (torch.default_generator.get_state(), random.getstate())

    def __exit__(self, *_: object) -> None:
        set_bit_generator(self._bits)
        _SPARE.append(self._own)
        torch.default_generator.set_state(self._kept[0])
        random.setstate(self._kept[1])


@contextmanager
def preserve_torch_rng(device: torch.device) -> Iterator[None]:
    """Restore torch's, numpy's and Python's generators."""
    devices = [] if device.type == "cpu" else [device]
    kind = device.type if devices else "cuda"
    with torch.random.fork_rng(devices=devices, device_type=kind), preserve_globals():
        yield


class ModelRNG:
    """Seeds the generators that a model on `device` draws from.

    numpy's and Python's are seeded once, at the first position; in training (`training`) for each
    micro-batch, if something draws from them.
    """

    def __init__(
        self, seed: int, device: torch.device, training: GlobalGenerators | None = None
    ) -> None:
        self.seed = seed
        self.training = training
        self._is_first = True
        self.device = device
        self.generators: list[Any] = [torch.default_generator]
        if device.type == "cuda":
            index = torch.cuda.current_device() if device.index is None else device.index
            self.generators.append(torch.cuda.default_generators[index])
        elif device.type == "mps":
            self.generators.append(torch.mps)  # it has one generator, seeded by the module

    def seed_micro_batch(self, step: int, position: int, *number: int) -> None:
        """Seed for the micro-batch of `step` whose first sample is at `position`.

        In a manual step, `number` is the number of the pass over the batch.
        """
        seed = derive_seed("model", self.seed, step, position, *number)
        for generator in self.generators:
            generator.manual_seed(seed)
        if self.training is not None:
            if self.training.seeded:
                self.training.seed(seed)
        elif self._is_first:
            self._is_first = False
            np.random.seed(seed % 2**32)
            random.seed(seed)

    def noise_generator(self, step: int, number: int, call: int, *position: int) -> torch.Generator:
        """Return a generator of noise with a row for each sample of a batch.

        A ready batch has one for its `position`.
        """
        seed = derive_seed("noise", self.seed, step, number, call, *position)
        return torch.Generator(self.device).manual_seed(seed)
