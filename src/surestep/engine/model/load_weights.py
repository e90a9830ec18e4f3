"""Start from weights: which tensor of a file goes where in the model, and what is left over.

A part that is not loaded keeps its first random values, and nothing would show it but worse
results. So every name of the model must be in the file and every name of the file in the model,
unless `skip` says otherwise.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import torch
from torch import Tensor, nn

from surestep.base.errors import CheckpointError, suggest_names
from surestep.engine.model.peft import base_names, has_adapters
from surestep.engine.task.init_weights import InitReport, InitWeights, summarize_names

WRAPPERS = ("module.", "model.")  # of DataParallel and DDP, of Lightning
COMPILED = "_orig_mod."


@torch.no_grad()
def load_matching_weights(
    model: nn.Module, tensors: Mapping[str, Tensor], init: InitWeights
) -> InitReport:
    """Load tensors into the model, in place.

    Raises:
        CheckpointError: names, shapes or types differ where `skip` does not say so; nothing is
            loaded then.
    """
    own = {name: v for name, v in model.state_dict().items() if isinstance(v, Tensor)}
    _check_skip(init, [*own, *tensors])
    called = _called(model, own, init, tensors)
    prefix = _prefix(init, set(called.values()), tensors)
    paired = _pair(called, _under(prefix, tensors), init.skip)
    tied = _tied(own)
    given = {tied[name]: name for name in paired.pairs}
    lost = [name for name in paired.lost if tied[name] not in given]
    _check_names(init, paired.pairs, lost, paired.extra)
    _check_fit(init, paired.pairs, own, tensors)
    for name, source in paired.pairs.items():
        twin = paired.pairs[given[tied[name]]]
        if twin != source and not torch.equal(tensors[twin], tensors[source]):
            raise CheckpointError(
                f"{twin} and {source} differ in {init.name}, and here they are one tensor. Leave "
                f"one out: Init({init.typed}, skip=[{source!r}])."
            )
    converted: Counter[str] = Counter()
    for name, source in paired.pairs.items():
        if tensors[source].dtype != own[name].dtype:
            converted[f"{tensors[source].dtype} -> {own[name].dtype}"] += 1
        own[name].copy_(tensors[source])
    used = set(paired.pairs.values())
    return InitReport(
        source=init.name,
        prefix=prefix,
        loaded=[name for name in own if tied[name] in given],
        missing=[name for name in own if tied[name] not in given],
        unexpected=[name for name in tensors if name not in used],
        converted=dict(converted),
    )


class _NameMatch(NamedTuple):
    """The model's names with the file's, and what found no partner and was not skipped."""

    pairs: dict[str, str]
    lost: list[str]
    extra: list[str]


def _pair(called: dict[str, str], there: dict[str, str], skip: Sequence[str]) -> _NameMatch:
    """Find each of the model's names in the file; one that is skipped is so on both sides."""
    pairs: dict[str, str] = {}
    lost: list[str] = []
    extra = set(there.values())
    for name, wanted in called.items():
        source = there.get(wanted)
        if _is_in(name, skip) or (source is not None and _is_in(source, skip)):
            extra.discard(source or "")
        elif source is None:
            lost.append(name)
        else:
            pairs[name] = source
    extra -= {*pairs.values(), *(name for name in extra if _is_in(name, skip))}
    return _NameMatch(pairs, lost, [name for name in there.values() if name in extra])


def _called(
    model: nn.Module, own: Iterable[str], init: InitWeights, tensors: Iterable[str]
) -> dict[str, str]:
    """Return the model's names with what a file is expected to call them.

    With adapters it is the base model's name, where the file is not of a model with adapters too.
    """
    names = {name: name for name in own}
    if has_adapters(model) and not any(name.startswith("base_model.") for name in tensors):
        names = base_names(model)
    names = {name: called.replace(COMPILED, "") for name, called in names.items()}
    if not init.into:
        return names
    part = f"{init.into.rstrip('.')}."
    found = {n: called.removeprefix(part) for n, called in names.items() if called.startswith(part)}
    if not found:
        parts = sorted({called.partition(".")[0] for called in names.values()})
        raise CheckpointError(
            f"Init(into={init.into!r}) names no part of the model. "
            f"{suggest_names(init.into, parts)}"
        )
    return found


def _prefix(init: InitWeights, wanted: set[str], tensors: Iterable[str]) -> str:
    """Return the prefix that was said, or that of a wrapper under which most names fit."""
    if init.prefix:
        return f"{init.prefix.rstrip('.')}."
    candidates = [""]
    for before in candidates:
        longer = [before + each for each in (*WRAPPERS, COMPILED)]
        candidates += [each for each in longer if any(n.startswith(each) for n in tensors)]
    return max(candidates, key=lambda each: len(wanted & _under(each, tensors).keys()))


def _under(prefix: str, tensors: Iterable[str]) -> dict[str, str]:
    """Return the names under a prefix, without it and without torch.compile's, with the file's."""
    return {
        name.removeprefix(prefix).replace(COMPILED, ""): name
        for name in tensors
        if name.startswith(prefix)
    }


def _tied(own: Mapping[str, Tensor]) -> dict[str, str]:
    """Return each name with the first one that is the same tensor."""
    first: dict[tuple[object, ...], str] = {}
    found = {}
    for name, value in own.items():
        key = (value.data_ptr(), value.shape, value.stride()) if value.numel() else (name,)
        found[name] = first.setdefault(key, name)
    return found


def _is_in(name: str, patterns: Iterable[str]) -> bool:
    """Say whether a name is one of these, or in a part of these, or fits one with stars."""
    return any(
        name == each or name.startswith(f"{each.rstrip('.')}.") or fnmatchcase(name, each)
        for each in patterns
    )


def _check_skip(init: InitWeights, names: list[str]) -> None:
    for pattern in init.skip:
        if not any(_is_in(name, [pattern]) for name in names):
            parts = {name.rpartition(".")[0] or name for name in names}
            raise CheckpointError(
                f"Init(skip=[{pattern!r}]) fits no name of the model or of {init.name}. "
                f"{suggest_names(pattern, sorted(parts | set(names)))}"
            )


def _check_names(
    init: InitWeights, pairs: dict[str, str], lost: list[str], extra: list[str]
) -> None:
    if not pairs:
        raise CheckpointError(
            f"Nothing in {init.name} fits the model: the file has "
            f"{summarize_names(extra, 3) or 'no names'}"
            f"{_where(init, lost, extra)}, and the model "
            f"{summarize_names(lost, 3) or 'none to load'}. Say "
            "what to cut off the file's names, Init(path, prefix=...), or where they belong, "
            "Init(path, into=...)."
        )
    if lost or extra:
        told = [f"{init.name} lacks {summarize_names(lost)}" if lost else ""]
        told += [
            f"{init.name} has {summarize_names(extra)}, which the model has not" if extra else ""
        ]
        raise CheckpointError(
            f"{'; '.join(filter(None, told))}. Where that is meant, say so: "
            f"surestep.InitWeights({init.typed}, skip={_parts([*lost, *extra])})."
        )


def _where(init: InitWeights, lost: list[str], extra: list[str]) -> str:
    """Say under which part of the model, or of the file, the names would fit."""
    if not (lost and extra) or init.into or init.prefix:
        return ""
    for name, others, word in ((extra[0], lost, "into"), (lost[0], extra, "prefix")):
        for other in others:
            if other.endswith(f".{name}"):
                part = other.removesuffix(f".{name}")
                return f" (they fit with {word}={part!r})"
    return ""


def _check_fit(
    init: InitWeights,
    pairs: dict[str, str],
    own: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
) -> None:
    bad = {}
    for name, source in pairs.items():
        here, there = own[name], tensors[source]
        if here.shape != there.shape:
            bad[name] = f"{source} is {tuple(there.shape)} there but {tuple(here.shape)} here"
        elif _kind(here) != _kind(there):
            bad[name] = f"{source} is {there.dtype} there but {here.dtype} here"
    if bad:
        told = list(bad.values())
        more = f" and {len(told) - 4} more" if len(told) > 4 else ""
        raise CheckpointError(
            f"Of {init.name}, {'; '.join(told[:4])}{more}. Leave them as they are with "
            f"surestep.InitWeights({init.typed}, skip={_parts(list(bad))}), or build the model "
            "with the "
            "sizes of the file."
        )


def _kind(value: Tensor) -> tuple[bool, bool]:
    return value.is_floating_point(), value.is_complex()


def _parts(names: list[str], limit: int = 8) -> list[str]:
    """Return the modules of these names, as one would type them."""
    found = list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
    return found[:limit]
