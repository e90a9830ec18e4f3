"""The script is seeded, but some of what it draws or computes differs between runs.

`torch.manual_seed` does not seed NumPy or `random`. If these decide an order or a split, two runs
with the same seed differ. `cudnn.benchmark` chooses convolutions by measuring them, so together
with `cudnn.deterministic` runs can still differ. Nothing fails: results do not repeat.

Only orders and splits are reported, and only outside of classes: PyTorch seeds NumPy and `random`
in the workers of a DataLoader.

Source: https://docs.pytorch.org/docs/stable/notes/randomness.html
"""

import ast
import re
from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.source.trace import Event, Program
from surestep.doctor.source.training import describe
from surestep.doctor.source.values import Call, Constant

SEVERITY = "warning"
FIX = "Seed torch, NumPy and random with the same number at the start of the script."
_TORCH_SEEDS = ("torch.manual_seed", "torch.random.manual_seed")
_SPLIT = "sklearn.model_selection.train_test_split"
_DRAWS = ("numpy.random.permutation", "numpy.random.shuffle", "random.shuffle", _SPLIT)
_SEED = re.compile(r"seed|random_state|set_state|setstate|RandomState", re.IGNORECASE)


def check(program: Program) -> Iterator[Problem]:
    """Find generators without a seed beside one with a seed, and conflicting modes of cuDNN."""
    events = [event for trace in program.traces for event in trace.events]
    yield from _check_modes(events)
    seeds = [event for event in events if event.call and event.call.path in _TORCH_SEEDS]
    others = [event.call for event in events if event.call and _SEED.search(event.call.path)]
    if not seeds or any(
        call.path not in (*_TORCH_SEEDS, "torch.cuda.manual_seed_all", "torch.cuda.manual_seed")
        for call in others
    ):
        return
    for trace in program.traces:
        places = [i for i, event in enumerate(trace.events) if event in seeds]
        for event in trace.events[places[0] :] if places else ():
            if event.call is not None and _draws(event.call) and not _is_in_class(event):
                library = "random" if event.call.path.startswith("random") else "NumPy"
                yield at_event(
                    event,
                    f"`{describe(event.call)}` differs in each run: torch is seeded, {library} is "
                    "not.",
                )
                return


def _draws(call: Call) -> bool:
    """Return whether a call draws an order from the global generator of NumPy or `random`."""
    if call.path == _SPLIT:
        options = ("random_state", "shuffle")
        return not call.has_unknown_arguments and not any(n in call.keywords for n in options)
    return call.path in _DRAWS


def _is_in_class(event: Event) -> bool:
    return any(function.owner is not None for function in event.stack)


def _check_modes(events: list[Event]) -> Iterator[Problem]:
    """Find `cudnn.benchmark = True` beside `cudnn.deterministic = True`."""
    modes = {
        event.target.attr: event
        for event in events
        if event.kind == "store"
        and isinstance(event.target, ast.Attribute)
        and ast.unparse(event.target.value).endswith("cudnn")
        and isinstance(event.value, Constant)
        and event.value.value is True
        and not event.branches
    }
    if "benchmark" in modes and "deterministic" in modes:
        yield at_event(
            modes["benchmark"],
            "`cudnn.benchmark` chooses algorithms by measuring them, although "
            "`cudnn.deterministic` is set.",
        )


def bad_order_by_numpy():
    import numpy as np
    import torch

    torch.manual_seed(0)
    data = torch.randn(20, 4)
    order = np.random.permutation(20)
    train, val = data[order[:15]], data[order[15:]]


def bad_shuffle_by_random():
    import random

    import torch

    def main(seed) -> None:
        torch.manual_seed(seed)
        names = [f"sample-{i}" for i in range(20)]
        random.shuffle(names)
        model = torch.nn.Linear(4, 1)

    main(seed=1)


def bad_both_modes():
    import torch

    torch.manual_seed(0)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = True
    model = torch.nn.Conv2d(1, 4, 3)


def good_all_seeded():
    import random

    import numpy as np
    import torch

    def set_seed(seed) -> None:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)

    set_seed(0)
    order = np.random.permutation(20)
    random.shuffle([1, 2, 3])


def good_only_torch():
    import torch

    torch.manual_seed(0)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    order = torch.randperm(20)


def good_generator_with_seed():
    import numpy as np
    import torch

    torch.manual_seed(0)
    order = np.random.default_rng(0).permutation(20)
    noise = np.random.RandomState(1).randn(20)


def good_in_a_dataset():
    import random

    import torch
    from torch.utils.data import DataLoader, Dataset

    class Noisy(Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, index):
            return torch.ones(4) * random.random()

    torch.manual_seed(0)
    loader = DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=2)
