"""What a run says when memory runs out: what is in memory, and what would help."""

import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from torch import nn

from surestep.base.errors import OutOfMemoryError
from surestep.base.text import format_bytes
from surestep.engine import private
from surestep.engine.device import clear_frames, stage_of
from surestep.engine.losses.multi import code_of_losses
from surestep.engine.object_search import Root, roots_of
from surestep.engine.profile.kept_tensors import KeptTensors, user_variables
from surestep.engine.profile.memory_use import MemoryUse, measure_memory_use
from surestep.record.memory_report import write_memory_report
from surestep.trainer.memory_advice import Advice, advise, describe_advice
from surestep.trainer.memory_failure import Failure

VIEWER = "https://pytorch.org/memory_viz"
_MOST = 3  # modules, objects and lines in the message; the file has more
_NOTABLE = 0.05  # of what is counted; smaller objects are not in the message
_SENTENCE = re.compile(r".*?ried to allocate [\d.]+ \w+\.?")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")  # of a module in a list


def explain_memory(
    error: Exception, failure: Failure, path: Path | None = None
) -> OutOfMemoryError:
    """Return the error to raise for one of memory that ran out; nothing here hides it.

    Args:
        error: of torch, numpy or Python.
        failure: when it happened.
        path: of the files to write, without their endings; None writes none.
    """
    where = stage_of(error) or failure.where
    lines = [f"Memory ran out {where}: {_describe_error(error)}".rstrip(".") + "."]
    try:
        use = measure_memory_use(
            error,
            failure.planned.plan.device,
            model=failure.model,
            state=failure.state,
            roots=lambda: _list_roots(failure),
        )
        clear_frames(error)  # so that the predictions have memory
        advice = advise(failure.planned, use, failure.evaluation_size, is_fixed=failure.is_fixed)
        lines += [*_describe_use(use, failure.model), *describe_advice(advice)]
        if path is not None:
            lines.append(_write(path, error, failure, use, advice, "\n".join(lines)))
    except Exception as failed:  # memory may run out again, or the disk be full
        lines.append(f"More is not known: {type(failed).__name__}: {failed}")
    return OutOfMemoryError("\n".join(lines))


def _describe_error(error: Exception) -> str:
    """Return the sentence that says what could not be allocated; of a data worker, the last."""
    if match := _SENTENCE.match(str(error)):
        return match[0]
    first, *others = str(error).strip().splitlines() or [type(error).__name__]
    return f"{first} {others[-1]}" if first.startswith("Caught ") and others else first


def _list_roots(failure: Failure) -> Iterator[Root]:
    """Yield what may hold tensors of the user: the Task's parts, callbacks, and variables."""
    task = failure.planned.task
    parts = {name: value for name, value in vars(task).items() if value is not None}
    if isinstance(task.model, nn.Module):
        del parts["model"]
    else:
        parts["model function"] = parts.pop("model")
    yield from roots_of(failure.model, code_of_losses(failure.planned.loss) | parts)
    yield from ((type(callback).__name__, callback) for callback in failure.callbacks)
    yield from user_variables(sys._getframe())


def _describe_use(use: MemoryUse, model: nn.Module) -> Iterator[str]:
    """Yield lines with what is in memory."""
    kinds = {**use.kinds, "your own tensors": sum(one.total for one in use.kept)}
    kinds["other tensors"] = sum(one["bytes"] for one in use.others)
    sizes = [f"{kind} {format_bytes(size)}" for kind, size in kinds.items() if size]
    if sizes:
        yield f"In memory: {', '.join(sizes)}."
    blocks: Counter[str] = Counter()
    for name, size in use.modules.items():
        blocks[_NUMBER.sub("*", name)] += size
    if blocks:
        largest = [
            f"{_name_module(name, model)} {format_bytes(size)}"
            for name, size in blocks.most_common(_MOST)
        ]
        yield f"Most activations: {', '.join(largest)}."
    least = _NOTABLE * sum(kinds.values())
    yield from (_describe_kept(one) for one in use.kept[:_MOST] if one.total >= least)
    if use.lines:
        largest = [f"{one['line']} ({format_bytes(one['bytes'])})" for one in use.lines[:_MOST]]
        yield f"Allocated by: {', '.join(largest)}."
    if use.cuda is not None:
        yield use.cuda.describe()
    elif use.host is not None:
        yield use.host.describe()
    if use.not_known:
        yield f"Not known: {'; '.join(f'{name} ({why})' for name, why in use.not_known.items())}."


def _name_module(name: str, model: nn.Module) -> str:
    """Return the name, with the type if it is a number alone, as in a Sequential."""
    return f"{name} ({type(model.get_submodule(name)).__name__})" if name.isdecimal() else name


def _describe_kept(kept: KeptTensors) -> str:
    noun = "tensor" if kept.count == 1 else "tensors"
    text = f"  {kept.path}: {kept.count:,} {noun}"
    if not kept.with_graph:
        return f"{text}, {format_bytes(kept.total)}."
    those = "its graph" if kept.count == 1 else "their graphs"
    return (
        f"{text} with {those}, {format_bytes(kept.total)}. Use .detach(), or .item() for a number."
    )


def _write(
    path: Path, error: Exception, failure: Failure, use: MemoryUse, advice: Advice, text: str
) -> str:
    """Write the report, and the snapshot of a CUDA device; return a line with where they are."""
    report, snapshot = (path.with_name(path.name + ending) for ending in (".json", ".pickle"))
    has_snapshot = use.cuda is not None and private.dump_cuda_snapshot is not None
    if has_snapshot:
        try:
            private.dump_cuda_snapshot(str(snapshot))
        except Exception as failed:  # of torch, or of the disk
            has_snapshot = False
            use.not_known["snapshot"] = f"{type(failed).__name__}: {failed}"
    content = {
        "where": failure.where,
        "text": text,
        "error": f"{type(error).__name__}: {error}",
        **use.as_json(),
        "advice": asdict(advice),
        "snapshot": snapshot.name if has_snapshot else None,
    }
    write_memory_report(report, content)
    return f"More in {report}" + (f"; {VIEWER} opens {snapshot}." if has_snapshot else ".")
