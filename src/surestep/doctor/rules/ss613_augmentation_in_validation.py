"""The data for evaluation is augmented at random, like the data for training.

Random crops, flips and colors make samples harder on purpose. In an evaluation, they make the
metric lower and different each time, so it does not show what the model can do. Often one dataset
with augmentations is split, and the part for validation keeps them. Nothing fails.

Augmentation at test time, where the predictions of several views are averaged, is not reported if a
name in the script says so (`tta`).

Source: https://docs.pytorch.org/vision/stable/transforms.html

Wrong:

    from torchvision import datasets, transforms

    transform = transforms.Compose(
        [transforms.RandomHorizontalFlip(), transforms.ToTensor(), transforms.Normalize(0.5, 0.5)]
    )
    train_set = datasets.CIFAR10("data", train=True, transform=transform)
    test_set = datasets.CIFAR10("data", train=False, transform=transform)

Right:

    from torchvision import datasets, transforms

    augment = transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor()])
    train_set = datasets.CIFAR10("data", train=True, transform=augment)
    test_set = datasets.CIFAR10("data", train=False, transform=transforms.ToTensor())
"""

import ast
import re
from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.source.splits import is_held_out
from surestep.doctor.source.trace import Event, Program, Trace
from surestep.doctor.source.training import describe
from surestep.doctor.source.values import Call, Constant, Either, Item, Value, walk

SEVERITY = "warning"
FIX = "Make a dataset for evaluation with its own transform: resize, center crop and normalize."
_DATASETS = ("torchvision.datasets.",)
_TRANSFORMS = ("torchvision.transforms.", "torchvision.transforms.v2.")
_RANDOM = re.compile(
    r"^(Random\w+|ColorJitter|AutoAugment|RandAugment|TrivialAugmentWide|AugMix|ElasticTransform)$"
)
_TEST_TIME = re.compile(r"\btta|_tta|test_time", re.IGNORECASE)


def check(program: Program) -> Iterator[Problem]:
    """Find datasets for evaluation with random transforms."""
    for trace in program.traces:
        for problem in _check_trace(trace):
            if program.contains(_TEST_TIME):  # a slow search, which few scripts need
                return
            yield problem


def _check_trace(trace: Trace) -> Iterator[Problem]:
    for event in trace.events:
        call = event.call
        if call is not None and _is_for_evaluation(call):
            random = _find_random(call)
            if random is not None:
                yield _report(event, describe(call), random)
        elif event.kind == "store" and isinstance(event.target, ast.expr):
            yield from _check_part(event, trace)


def _report(event: Event, name: str, random: Call) -> Problem:
    return at_event(
        event,
        f"`{name}` is for evaluation, but `{describe(random)}` changes its samples at random.",
        transform_line=random.line,
    )


def _is_for_evaluation(call: Call) -> bool:
    """Return whether a call makes a dataset of torchvision that is not for training."""
    if not call.path.startswith(_DATASETS) or call.has_unknown_arguments:
        return False
    train, split = call.keywords.get("train"), call.keywords.get("split")
    if isinstance(train, Constant):
        return train.value is False
    return isinstance(split, Constant) and split.value in ("test", "val", "valid")


def _find_random(call: Call) -> Call | None:
    """Return a random transform that a dataset certainly applies to its inputs."""
    transform = call.keywords.get("transform")
    if transform is None:
        return None
    parts = list(walk(transform))
    if any(isinstance(part, Either) for part in parts):
        return None
    for part in parts:
        if isinstance(part, Call) and part.path.startswith(_TRANSFORMS):
            probability = part.keywords.get("p")
            is_off = isinstance(probability, Constant) and not probability.value
            if _RANDOM.match(part.name) and not is_off:
                return part
    return None


def _check_part(event: Event, trace: Trace) -> Iterator[Problem]:
    """Find `train_set, val_set = random_split(augmented, ...)`."""
    part = event.value
    name = "" if event.target is None else ast.unparse(event.target)
    if not isinstance(part, Item) or not is_held_out(name):
        return
    split = part.base
    if not isinstance(split, Call) or split.path != "torch.utils.data.random_split":
        return
    dataset = split.argument(0, "dataset")
    is_known = isinstance(dataset, Call) and dataset.path.startswith(_DATASETS)
    if not isinstance(dataset, Call) or not is_known or _is_changed((part, dataset), trace):
        return
    random = _find_random(dataset)
    if random is not None:
        yield _report(event, name, random)


def _is_changed(values: tuple[Value, ...], trace: Trace) -> bool:
    """Return whether an attribute of a dataset, such as its transform, is assigned later."""
    return any(
        event.kind == "store"
        and event.base is not None
        and any(part in values for part in walk(event.base))
        for event in trace.events
    )
