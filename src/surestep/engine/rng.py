"""Global generators and their seeds, which follow from the position in the run, not from draws.

PURPOSES lists everything that is random. Before each of them, the generators are seeded from its
purpose and its position. So no generator state is saved, evaluations and callbacks do not change
the training, the number of workers does not matter, and any step can be repeated. Generators that
the user's objects own are in `own_generators.py`.
"""

import os
import random
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from ctypes import c_char
from functools import cache
from hashlib import blake2b
from struct import Struct
from typing import Any

import numpy as np
import torch

# numpy's stubs do not export them.
from numpy.random import get_bit_generator, set_bit_generator  # type: ignore[attr-defined]
from torch.utils.data import get_worker_info

_WORDS = 4 * 624  # bytes of the words of an MT19937, before the index of the next one
_SIZE = _WORDS + 4
_STRIDE_OF_CALLS = 0xD1B5_4A32_D192_ED03  # between the seeds of two calls in one step
_STRIDE = 0x9E37_79B9_7F4A_7C15  # between the seeds of two steps: the golden ratio, as in SplitMix
_PYTHON_LAYOUT = Struct("@i624I")  # the index of the next word, and the words
_NO_WORD_LEFT = Struct("@i").pack(624)  # the index after seeding: a draw makes other words first
_PYTHON: Any = getattr(random, "_inst", None)  # the generator of the functions of `random`


SEEDS = 2  # the version of PURPOSES, in the record of a run
PURPOSES: Mapping[str, tuple[str, ...]] = {
    # before training
    "recipe": ("seed",),  # the function of a recipe that returns the Task
    "build": ("seed",),  # the function of Task(model=) that builds the model
    "batches": ("seed",),  # batch_by_tokens: samples of one length
    # which sample is at a position
    "order": ("seed", "epoch"),
    "mixture": ("seed", "pass", "dataset"),  # the order within one of several datasets
    "sampler": ("seed", "epoch", "number"),  # 0: global draws of a custom one; 1: its batches
    "buffer": ("seed", "epoch", "worker"),  # the shuffle buffer of a stream
    # what a sample is
    "load": ("seed", "epoch", "position", "split"),
    "stream": ("seed", "epoch", "worker", "split"),  # the beginning of a pass over a stream
    "inputs": ("seed", "epoch", "position", "split"),  # Task(inputs=), by micro-batch
    "own batch": ("seed", "step", "position"),  # Task(inputs=), of a batch given to train_step()
    "transform": ("seed", "step"),  # Task(batch_transform=)
    # the model and the loss, by micro-batch
    "model": ("seed", "step", "position"),  # and the pass of a manual step
    "noise": ("seed", "step", "pass", "call"),  # manual_step.randn(), and the position
    # pass 0, or a pass of Monte-Carlo dropout; metrics end at the position after the last sample
    "evaluate": ("seed", "position", "pass", "split"),
    "statistics": ("seed", "position"),  # BatchNorm's, of averaged weights
    "trial": ("seed", "number"),  # of the model, in a check
    "check": ("number",),  # everything else of a check: no result depends on it
    "optimizer": ("seed", "step", "number", "name"),  # a custom one, or one with hooks
    # each step has its own seed, derived from this one: see SeparateRNG
    "callback": ("seed", "hook", "class", "number"),
    # the generators beside torch's, from torch's seed
    "numpy": ("torch_seed",),
    "python": ("torch_seed",),
    "worker": ("torch_seed",),  # get_worker_info().seed
    "generator": ("torch_seed",),  # the argument of a batch_transform
}


def derive_seed(*place: str | int) -> int:
    """Derive a 63-bit seed from values such as `derive_seed("order", seed, epoch)`.

    It is blake2b with a digest of 8 bytes (little-endian) over the values as text joined by spaces,
    without the lowest bit. Similar values give unrelated seeds.

    Args:
        place: text and integers that identify what the seed is for.

    Returns:
        An integer from 0 to 2**63 - 1.

    Example:
        >>> import surestep
        >>> surestep.derive_seed("order", 0, 1) == surestep.derive_seed("order", 0, 1)
        True
        >>> surestep.derive_seed("order", 0, 1) == surestep.derive_seed("order", 0, 2)
        False
    """
    words = " ".join(map(str, place)).encode()
    return int.from_bytes(blake2b(words, digest_size=8).digest(), "little") >> 1


def set_seed(seed: int, *, deterministic: bool = False) -> None:
    """Seed Python's, numpy's and torch's generators, on every device.

    torch gets `seed`, and the others get seeds derived from it: from one seed, numpy and torch on a
    CPU would draw the same integers.

    Args:
        seed: an integer from 0 to 2**63 - 1.
        deterministic: also use torch's deterministic algorithms, for cudnn and cuBLAS too; an
            operation without one then raises RuntimeError.

    Source: https://docs.pytorch.org/docs/stable/notes/randomness.html
    """
    clear_numpy_gauss_cache()  # np.random.seed forgets it for numpy's usual bit generator only
    _seed_globals(seed)
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
    _seed_globals(seed)


def seed_sample(seed: int) -> None:
    """Seed what a sample may draw from, with the seed that a worker reports."""
    seed_loading(seed)
    info = get_worker_info()
    if info is not None:
        # torch's depends on the worker, and on how often loading began in this process.
        object.__setattr__(info, "seed", derive_seed("worker", seed))


def reset_numpy_bit_generator() -> None:
    """Use numpy's default bit generator in a worker, whichever the program has set."""
    set_bit_generator(np.random.MT19937(0))


class OtherGlobals:
    """In a `with` block, numpy's and Python's global generators have other states.

    numpy draws from a different bit generator meanwhile: to copy its state takes 90 us. What is
    lost is what `clear_numpy_gauss_cache` drops.

    Attributes:
        memory: of the state of that bit generator; None if its layout is unknown.
    """

    def __init__(self, *, is_spare: bool = False) -> None:
        self._bits = np.random.MT19937(0)
        self.memory, self._python = _numpy_memory(self._bits), _python_memory()
        self._words = None if self.memory is None else self.memory[:_WORDS]
        self._seed_bits = np.random.RandomState(self._bits).seed
        self._is_spare = is_spare

    def __enter__(self) -> "OtherGlobals":
        python, self._program_bits = self._python, get_bit_generator()
        # `random.getstate` takes 15 us.
        known = None if python is None else (python.tobytes(), _PYTHON.gauss_next)
        self._python_state = random.getstate() if known is None else known
        set_bit_generator(self._bits)
        _PRESERVED.append(self._program_bits)
        return self

    def __exit__(self, *_: object) -> None:
        _PRESERVED.pop()
        set_bit_generator(self._program_bits)
        if self._is_spare:
            _SPARE.append(self)
        if self._python is None:
            random.setstate(self._python_state)
        else:
            self._python[:], _PYTHON.gauss_next = self._python_state

    def seed(self, seed: int) -> None:
        """Seed both with the upper bits; the lower ones are for torch's."""
        if self._words is None or self._python is None:
            _seed_globals(seed)
            return
        # `random.seed` takes longer than to copy words of numpy.
        self._seed_bits(seed >> 32 ^ 0x5555_5555)
        self._python[:4], self._python[4:] = _NO_WORD_LEFT, self._words
        _PYTHON.gauss_next = None
        self._seed_bits(seed >> 32)


_SPARE: list[OtherGlobals] = []  # to make one takes longer than to seed it
_PRESERVED: list[Any] = []  # bit generators of the program, while its generators are not in use


def preserve_globals() -> OtherGlobals:
    """Restore numpy's and Python's global generators after a `with` block."""
    return _SPARE.pop() if _SPARE else OtherGlobals(is_spare=True)


@contextmanager
def preserve_rng() -> Iterator[None]:
    """Restore the generators of this process that a dataset may draw from; seed them first."""
    state = torch.default_generator.get_state()
    try:
        with preserve_globals():
            yield
    finally:
        torch.default_generator.set_state(state)


@contextmanager
def preserve_torch_rng(device: torch.device) -> Iterator[None]:
    """Restore torch's generators, also that of the device, and numpy's and Python's."""
    devices = [] if device.type == "cpu" else [device]
    kind = device.type if devices else "cuda"
    with torch.random.fork_rng(devices=devices, device_type=kind), preserve_globals():
        yield


def _global_states() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state(legacy=False)


def _set_global_states(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])


@contextmanager
def preserve_all_rng(device: torch.device) -> Iterator[None]:
    """Restore all global generators, with the gaussians that numpy and Python have stored."""
    states = _global_states()
    try:
        with preserve_torch_rng(device):
            yield
    finally:
        _set_global_states(states)


def states_to_repeat() -> tuple[Any, Any] | None:
    """Return the states of numpy's and Python's, for `repeat_draws`; None if not preserved."""
    return _global_states() if _PRESERVED else None


@contextmanager
def repeat_draws(states: tuple[Any, Any] | None) -> Iterator[None]:
    """Draw again what was drawn after `states_to_repeat`, and restore the generators."""
    if states is None:
        yield
        return
    now = _global_states()
    _set_global_states(states)
    try:
        yield
    finally:
        _set_global_states(now)


class GlobalGenerators:
    """numpy's and Python's global generators in a step: seeded, or only watched.

    To seed them takes 20 us a micro-batch, so it is done only if something draws: the first step of
    a process is seeded and watched. If nothing drew, later steps compare 8 bytes of each generator
    before and after. A step in which something draws for the first time is computed again, seeded,
    after the states before it are restored.

    Attributes:
        seeded: call `seed` for each micro-batch, within `preserved`.
        watched: 8 bytes of Python's and of numpy's, which a draw changes; for steps without seeds.
        memory: all of the state of Python's and of numpy's.
        python: Python's generator, whose `gauss_next` the second of two gaussians changes.
        numpy_seen: the bytes of numpy's in `watched` when `drop_stored` was last called.
    """

    def __init__(self, *, can_recompute: bool) -> None:
        self._own = OtherGlobals()  # draws in seeded steps
        self._bits = get_bit_generator()  # kept alive: its memory is watched
        self.python, self.numpy_seen = _PYTHON, -1
        numpy, own, python = _numpy_memory(self._bits), self._own.memory, _python_memory()
        self.seeded, self._detects, self._drew = True, False, False
        if can_recompute and numpy is not None and own is not None and python is not None:
            index = python[:8].cast("Q")
            self.watched = index, numpy[_WORDS - 4 :].cast("Q")
            self._in_step = index, own[_WORDS - 4 :].cast("Q")
            self.memory = python, numpy
            self._detects = True
        self._seeded_state: tuple[int, ...] = ()

    def seed(self, seed: int) -> None:
        """Seed both for a micro-batch."""
        if self._detects:
            self._check_draws()
        _seed_globals(seed)
        if self._detects:
            self._seeded_state = tuple(view[0] for view in self._in_step)

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """Preserve the program's generators during a step.

        After a step in which nothing drew, `seeded` is off if that is allowed.
        """
        self._seeded_state = ()
        with self._own:
            yield
            if self._detects:
                self._check_draws()
                self.seeded, self._detects = self._drew, not self._drew

    def drop_stored(self) -> None:
        """Drop a gaussian that numpy stored since the last call; to draw it changes no byte."""
        clear_numpy_gauss_cache()
        self.numpy_seen = self.watched[1][0]

    def copy_states(self) -> tuple[tuple[bytes, bytes], float | None]:
        """Return what `restore` takes; only while generators are watched."""
        python, numpy = self.memory
        return (python.tobytes(), numpy.tobytes()), self.python.gauss_next

    def restore(self, states: tuple[bytes, bytes], gauss_next: float | None) -> None:
        """Restore what was copied from `memory`, and Python's `gauss_next`."""
        for memory, state in zip(self.memory, states, strict=True):
            memory[:] = state
        self.python.gauss_next = gauss_next

    def seed_from_now_on(self) -> None:
        """Seed every step, since something drew in one that was only watched."""
        self.seeded, self._detects = True, False

    def _check_draws(self) -> None:
        """Note whether something drew since the last seed."""
        if self._seeded_state:
            self._drew |= self._seeded_state != tuple(view[0] for view in self._in_step)


def _seed_globals(seed: int) -> None:
    """Seed numpy's and Python's; both are MT19937 like torch's, so each gets other bits."""
    np.random.seed(derive_seed("numpy", seed) % 2**32)
    random.seed(derive_seed("python", seed))


@cache
def _python_memory() -> memoryview | None:
    """Return the memory of the state of Python's generator; None if its layout is unknown.

    In CPython the state follows the object's header. This is compared with `random.getstate`.

    Source: https://github.com/python/cpython/blob/main/Modules/_randommodule.c
    """
    header, has_gil = object.__basicsize__, getattr(sys, "_is_gil_enabled", lambda: True)
    if sys.implementation.name != "cpython" or not has_gil():
        return None
    if type(_PYTHON).__basicsize__ < header + _PYTHON_LAYOUT.size:
        return None
    memory = (c_char * _PYTHON_LAYOUT.size).from_address(id(_PYTHON) + header)
    *words, index = random.getstate()[1]
    view = memoryview(memory).cast("B")
    return view if view == _PYTHON_LAYOUT.pack(index, *words) else None


def _numpy_memory(bits: Any) -> memoryview | None:
    """Return the memory of the state of an MT19937; None if its layout is unknown."""
    if not isinstance(bits, np.random.MT19937):
        return None
    memory = memoryview((c_char * _SIZE).from_address(bits.ctypes.state_address)).cast("B")
    state = bits.state["state"]
    expected = state["key"].astype("=u4").tobytes() + np.int32(state["pos"]).tobytes()
    return memory if memory == expected else None


def states_of_globals() -> Hashable:
    """Return the states of Python's and numpy's generators, an MT19937, to be compared."""
    state: Any = np.random.get_state()
    name, words, *others = state
    return random.getstate(), name, words.tobytes(), *others


def states_of_all(device: torch.device) -> Hashable:
    """Return the states of all global generators that code on a device draws from."""
    states = [_access(generator, "get")() for generator in torch_generators(device)]
    return states_of_globals(), *(bytes(state.numpy(force=True)) for state in states)


def torch_generators(device: torch.device) -> list[Any]:
    """Return torch's global generators that code on a device draws from, the CPU's first."""
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        return [torch.default_generator, torch.cuda.default_generators[index]]
    if device.type == "mps":
        return [torch.default_generator, torch.mps]  # its generator is seeded by the module
    return [torch.default_generator]


class ModelRNG:
    """Seeds the generators that a model on `device` draws from, for each micro-batch.

    In training (`training`), numpy's and Python's are seeded only if something draws from them.
    """

    def __init__(
        self, seed: int, device: torch.device, training: GlobalGenerators | None = None
    ) -> None:
        self.seed = seed
        self.training = training
        self.device = device
        self.generators: list[Any] = torch_generators(device)

    def seed_for(self, purpose: str, *place: str | int) -> None:
        """Seed for a micro-batch; `place` is that of PURPOSES after the seed of the run."""
        seed = derive_seed(purpose, self.seed, *place)
        for generator in self.generators:
            generator.manual_seed(seed)
        if self.training is not None:
            if self.training.seeded:
                self.training.seed(seed)
        else:
            _seed_globals(seed)

    def noise_generator(self, step: int, number: int, call: int, *position: int) -> torch.Generator:
        """Return a generator of noise with a row for each sample of a batch.

        A ready batch has one for its `position`.
        """
        seed = derive_seed("noise", self.seed, step, number, call, *position)
        return torch.Generator(self.device).manual_seed(seed)


class SeparateRNG:
    """Seeds the global generators for calls of code that the training does not depend on.

    Each call has its own stream, and the generators are restored after it.

    Args:
        seed: of the code; that of a call is this, a multiple of the step's number, and another of
            the number of calls before it in this step.
        device: whose generators are seeded, beside the CPU's.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed = seed
        self._cpu, *self._others = torch_generators(device)
        self._step, self._calls = -1, 0

    def call(self, step: int, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function and return its result.

        Args:
            step: the steps that the run has taken.
            function: the code that may draw.
            args: its arguments.
        """
        self._calls = self._calls + 1 if step == self._step else 0
        self._step = step
        seed = (self._seed + step * _STRIDE + self._calls * _STRIDE_OF_CALLS) % 2**63
        if self._others:
            function, args = self._call_seeded, (seed, function, *args)
        state = self._cpu.get_state()
        self._cpu.manual_seed(seed)
        try:
            with preserve_globals() as generators:
                generators.seed(seed)
                return function(*args)
        finally:
            self._cpu.set_state(state)

    def _call_seeded(self, seed: int, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function with the generators of devices seeded."""
        states = [_access(generator, "get")() for generator in self._others]
        for generator in self._others:
            generator.manual_seed(seed)
        try:
            return function(*args)
        finally:
            for generator, state in zip(self._others, states, strict=True):
                _access(generator, "set")(state)


def _access(generator: Any, verb: str) -> Any:
    """Return what gets or sets the state of a generator; mps has a module."""
    is_module = not isinstance(generator, torch.Generator)
    return getattr(generator, f"{verb}_rng_state" if is_module else f"{verb}_state")
