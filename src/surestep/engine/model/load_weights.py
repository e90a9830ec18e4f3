"""Initial weights: which tensor of a file goes where in the model, and what is left over.

A part that is not loaded keeps its random values, and only worse results would show it. So every
name of the model must be in the file and every name of the file in the model, except for `skip`.
A model of peft loads its base's weights; it is recognized by `peft_config`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from surestep.base.errors import CheckpointError, suggest_names
from surestep.engine.task.init_weights import InitReport, InitWeights, summarize_names

WRAPPERS = ("module.", "model.")  # of DataParallel and DDP, of Lightning
COMPILED = "_orig_mod."
_PEFT_WRAPPER = re.compile(r"\.(base_layer|original_module|modules_to_save\.[^.]+)(?=\.)")


def has_adapters(model: nn.Module) -> bool:
    """Return whether peft has put adapters into the model."""
    return hasattr(model, "peft_config")


def base_names(model: nn.Module) -> dict[str, str]:
    """Return the names of tensors of the base model, each with its name there.

    Two may have the same: peft keeps a copy of a module that is fully trained.
    """
    base = getattr(model, "base_model", None)
    mark = str(getattr(base, "prefix", "lora_"))
    found = {}
    for name, value in model.state_dict().items():
        parts = name.split(".")
        if isinstance(value, Tensor) and not any(part.startswith(mark) for part in parts):
            found[name] = _PEFT_WRAPPER.sub("", name.removeprefix("base_model.model."))
    return found


@torch.no_grad()
def load_matching_weights(
    model: nn.Module, tensors: Mapping[str, Tensor], init: InitWeights
) -> InitReport:
    """Load tensors into the model, in place.

    Raises:
        CheckpointError: names, shapes or dtypes differ, except for `skip`; nothing is loaded.
    """
    own = {name: v for name, v in model.state_dict().items() if isinstance(v, Tensor)}
    _check_skip(init, [*own, *tensors])
    names = _names_in_file(model, own, init, tensors)
    prefix = _prefix(init, set(names.values()), tensors)
    pairs, missing, unexpected = _match(names, _without_prefix(prefix, tensors), init.skip)
    tied = _first_names(own)
    given = {tied[name]: name for name in pairs}
    _check_names(init, pairs, [name for name in missing if tied[name] not in given], unexpected)
    _check_fit(init, pairs, own, tensors)
    for name, source in pairs.items():
        twin = pairs[given[tied[name]]]
        if twin != source and not torch.equal(tensors[twin], tensors[source]):
            raise CheckpointError(
                f"{twin} and {source} differ in {init.name}, and here they are one tensor. Leave "
                f"one out: InitWeights({init.typed}, skip=[{source!r}])."
            )
    converted: Counter[str] = Counter()
    for name, source in pairs.items():
        if tensors[source].dtype != own[name].dtype:
            converted[f"{tensors[source].dtype} -> {own[name].dtype}"] += 1
        own[name].copy_(tensors[source])
    used = set(pairs.values())
    return InitReport(
        source=init.name,
        prefix=prefix,
        loaded=[name for name in own if tied[name] in given],
        missing=[name for name in own if tied[name] not in given],
        unexpected=[name for name in tensors if name not in used],
        converted=dict(converted),
    )


def _match(
    names: dict[str, str], there: dict[str, str], skip: Sequence[str]
) -> tuple[dict[str, str], list[str], list[str]]:
    """Find each of the model's names in the file; a skipped name is skipped on both sides.

    Return the model's names with the file's, and the names of both without a partner.
    """
    pairs: dict[str, str] = {}
    missing: list[str] = []
    unexpected = {source for source in there.values() if not _matches(source, skip)}
    for name, wanted in names.items():
        source = there.get(wanted)
        if _matches(name, skip) or (source is not None and _matches(source, skip)):
            unexpected.discard(source or "")
        elif source is None:
            missing.append(name)
        else:
            pairs[name] = source
    unexpected -= set(pairs.values())
    return pairs, missing, [name for name in there.values() if name in unexpected]


def _names_in_file(
    model: nn.Module, own: Iterable[str], init: InitWeights, tensors: Iterable[str]
) -> dict[str, str]:
    """Return the model's names, each with the name that the file should have.

    With adapters it is the base model's name, unless the file is of a model with adapters too.
    """
    names = {name: name for name in own}
    if has_adapters(model) and not any(name.startswith("base_model.") for name in tensors):
        names = base_names(model)
    if not init.into:
        return names
    part = f"{init.into.rstrip('.')}."
    found = {n: called.removeprefix(part) for n, called in names.items() if called.startswith(part)}
    if not found:
        parts = sorted({called.partition(".")[0] for called in names.values()})
        raise CheckpointError(
            f"InitWeights(into={init.into!r}) names no part of the model. "
            f"{suggest_names(init.into, parts)}"
        )
    return found


def _prefix(init: InitWeights, wanted: set[str], tensors: Iterable[str]) -> str:
    """Return the given prefix, or that of the wrapper with which most names match."""
    if init.prefix:
        return f"{init.prefix.rstrip('.')}."
    candidates = [""]
    for before in candidates:  # grows in the loop
        longer = [before + wrapper for wrapper in (*WRAPPERS, COMPILED)]
        candidates += [one for one in longer if any(name.startswith(one) for name in tensors)]
    return max(candidates, key=lambda one: len(wanted & _without_prefix(one, tensors).keys()))


def _without_prefix(prefix: str, tensors: Iterable[str]) -> dict[str, str]:
    """Return the file's names by what is left without the prefix and torch.compile's."""
    return {
        name.removeprefix(prefix).replace(COMPILED, ""): name
        for name in tensors
        if name.startswith(prefix)
    }


def _first_names(own: Mapping[str, Tensor]) -> dict[str, str]:
    """Return each name with the first name of the same tensor."""
    first: dict[tuple[object, ...], str] = {}
    found = {}
    for name, value in own.items():
        key = (value.data_ptr(), value.shape, value.stride()) if value.numel() else (name,)
        found[name] = first.setdefault(key, name)
    return found


def _matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a name, or a module that it is in, is one of these, or matches a wildcard."""
    return any(
        name == one or name.startswith(f"{one.rstrip('.')}.") or fnmatchcase(name, one)
        for one in patterns
    )


def _check_skip(init: InitWeights, names: list[str]) -> None:
    for pattern in init.skip:
        if not any(_matches(name, [pattern]) for name in names):
            parts = {name.rpartition(".")[0] or name for name in names}
            raise CheckpointError(
                f"InitWeights(skip=[{pattern!r}]) matches no name of the model or of {init.name}. "
                f"{suggest_names(pattern, sorted(parts | set(names)))}"
            )


def _check_names(
    init: InitWeights, pairs: dict[str, str], missing: list[str], unexpected: list[str]
) -> None:
    if not pairs:
        raise CheckpointError(
            f"Nothing in {init.name} matches the model: the file has "
            f"{summarize_names(unexpected, 3) or 'no names'}, and the model "
            f"{summarize_names(missing, 3) or 'none to load'}. Set the prefix of the file's names, "
            "InitWeights(path, prefix=...), or where they belong, InitWeights(path, into=...)."
        )
    problems = []
    if missing:
        problems.append(f"{init.name} lacks {summarize_names(missing)}")
    if unexpected:
        problems.append(
            f"{init.name} has {summarize_names(unexpected)}, which the model does not have"
        )
    if problems:
        raise CheckpointError(
            f"{'; '.join(problems)}. If that is intended, use "
            f"surestep.InitWeights({init.typed}, skip={_modules([*missing, *unexpected])})."
        )


def _check_fit(
    init: InitWeights,
    pairs: dict[str, str],
    own: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
) -> None:
    bad = {}
    for name, source in pairs.items():
        here, there = own[name], tensors[source]
        kinds = [(value.is_floating_point(), value.is_complex()) for value in (here, there)]
        if here.shape != there.shape:
            bad[name] = f"{source} is {tuple(there.shape)} there but {tuple(here.shape)} here"
        elif kinds[0] != kinds[1]:
            bad[name] = f"{source} is {there.dtype} there but {here.dtype} here"
    if bad:
        raise CheckpointError(
            f"Of {init.name}, {summarize_names(list(bad.values()), 4)}. Leave them as they are "
            f"with surestep.InitWeights({init.typed}, skip={_modules(bad)}), or build the model "
            "with the sizes of the file."
        )


def _modules(names: Iterable[str]) -> list[str]:
    """Return the first modules of these names."""
    return list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))[:8]
