"""Micro-batches of any size give the gradient of the full batch, within rounding."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from surestep.engine.batch import flatten_tensors
from surestep.engine.distributed.shards import full_tensor
from surestep.engine.state.state import State, trainable_parameters
from surestep.engine.step.part import Functions, Part
from surestep.engine.step.train_step import StepResult
from surestep.engine.task.task import Task
from surestep.laws.check import Result, fail, hold, leave_out, leave_untested
from surestep.laws.compare import Difference, compare_elements
from surestep.laws.evaluation_layers import EvaluationLayers
from surestep.laws.record import Place, digest_value
from surestep.laws.run import Recorded, Variant
from surestep.laws.runner import Finding, RunFailedError, Runner
from surestep.laws.trace import find_line
from surestep.trainer.session import Session

LAW, NAME = "law 1", "splitting"
DRAWS = "The forward draws random numbers"
BATCH_NORM = "batch statistics are the micro-batch's"  # as the Plan reports it
# Rounding in float64 is 2^-29 of that in float32. What stays above this share is a fault.
_SHARE_OF_ROUNDING = 2.0**-20
_LARGE = 1e-3  # of the largest magnitude: no rounding of float32


@dataclass
class Step:
    """What the first step of a run computed, on the host.

    Attributes:
        inputs: of each module, by name: one tensor for each call.
        outputs: likewise.
        lines: file and line of the forward of each module.
        loss: summed over the items.
        gradients: by parameter.
    """

    inputs: dict[str, list[Tensor]] = field(default_factory=dict)
    outputs: dict[str, list[Tensor]] = field(default_factory=dict)
    lines: dict[str, str] = field(default_factory=dict)
    loss: Tensor | None = None
    gradients: dict[str, Tensor] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the values of tensors: torch would share the memory of a process that ends."""
        tensors = {
            f"{kind} {number} {name}": tensor
            for kind, named in (("inputs", self.inputs), ("outputs", self.outputs))
            for name, listed in named.items()
            for number, tensor in enumerate(listed)
        }
        tensors |= {f"gradients 0 {name}": tensor for name, tensor in self.gradients.items()}
        if self.loss is not None:
            tensors["loss 0 "] = self.loss
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        return _read_step, (save(contiguous), list(contiguous), self.lines)


def _read_step(data: bytes, keys: list[str], lines: dict[str, str]) -> Step:
    step, found = Step(lines=lines), load(data)
    for key in keys:  # the modules in the order of their calls
        kind, _, name = key.split(" ", 2)
        if kind == "loss":
            step.loss = found[key]
        elif kind == "gradients":
            step.gradients[name] = found[key]
        else:
            getattr(step, kind).setdefault(name, []).append(found[key])
    return step


def check(runner: Runner) -> Result:
    """Compare the first gradient of a full batch with that of halves, thirds and single samples."""
    facts = runner.facts
    reasons = [why for why in facts.not_splitting if why != BATCH_NORM]
    if reasons:
        return leave_out(f"Splitting changes the numbers by design: {reasons[0]}.")
    size = facts.batch_size
    sizes = choose_sizes(size, has_batch_norm=BATCH_NORM in facts.not_splitting)
    if not sizes:
        return leave_untested(f"A batch of {size} cannot be split. Set a larger batch_size.")
    redrawn = redraw(make_variant(size))
    variants = [redrawn, *(make_variant(count) for count in (size, *sizes))]
    other, whole, *split = runner.train_all(variants)
    first: Step = whole.notes[0]
    if next(find_differences(first, other.notes[0]), None) is not None:
        return leave_untested(f"{DRAWS}, which each micro-batch draws for itself.")
    for count, recorded in zip(sizes, split, strict=True):
        for difference in find_differences(first, recorded.notes[0]):
            rounds = difference.is_rounding or _is_rounding(runner, count, difference)
            if rounds is None:
                return leave_untested(
                    f"{difference} The program does not run in float64, which would show whether "
                    "this is rounding."
                )
            if not rounds:
                source = find_source(difference, first, recorded.notes[0])
                source = source or whole.sources.get(difference.place.kind, "")
                text = f"Micro-batches of {count} of {size} samples change the update"
                return fail(text, Finding(difference, source))
    without = (
        ", with dropout and BatchNorm as in evaluations"
        if BATCH_NORM in facts.not_splitting
        else ""
    )
    return hold(f"micro-batches of {', '.join(map(str, sizes))} of {size} samples{without}")


def choose_sizes(size: int, *, has_batch_norm: bool) -> list[int]:
    """Return the sizes of micro-batches: halves, thirds and single samples.

    BatchNorm takes no single sample, so its smallest micro-batches have two.
    """
    smallest = 2 if has_batch_norm else 1
    sizes = {max(smallest, size // 2), max(smallest, -(-size // 3)), smallest}
    kept = {one for one in sizes if one < size and (smallest == 1 or size % one != 1)}
    return sorted(kept, reverse=True)


def make_variant(size: int, *, is_double: bool = False) -> Variant:
    """Return a run whose first step is recorded, in fp32 or with a model in float64."""
    return Variant(
        f"micro-batches of {size} samples",
        {"micro_batch_size": size, "precision": "fp32"},
        add_parts=record_step,
        use=EvaluationLayers,
        change_task=_use_float64 if is_double else None,
        steps=1,
    )


def redraw(variant: Variant) -> Variant:
    """Return a run that draws other random numbers in the forward."""
    return replace(variant, name="other random numbers", add_parts=_record_redrawn_step)


def record_step(session: Session, recorded: Recorded) -> Sequence[Part]:
    """Return what notes the first step of a run."""
    step = Step()
    recorded.notes.append(step)
    handles: list[Any] = []

    def begin(state: State, batch: Any) -> None:
        if state.progress.step:  # ranks agree on a pause one step later
            return
        for name, module in state.model.named_modules():
            step.lines[name] = find_line(type(module).forward)
            handles.append(
                module.register_forward_hook(lambda *call, name=name: note(name, *call[1:]))
            )

    def note(name: str, inputs: Any, output: Any) -> None:
        if torch.is_grad_enabled():
            for known, value in ((step.inputs, inputs), (step.outputs, output)):
                first = next(iter(flatten_tensors(value)), None)
                if first is not None:
                    known.setdefault(name, []).append(first.detach().cpu().clone())

    def note_gradients(state: State) -> None:
        if state.progress.step:
            return
        for name, parameter in trainable_parameters(state.model).items():
            if parameter.grad is not None:
                step.gradients[name] = full_tensor(parameter.grad.detach()).cpu().clone()

    def end(state: State, result: StepResult) -> None:
        if result.step > 1:
            return
        step.loss = None if result.loss_sum is None else result.loss_sum.detach().cpu()
        while handles:
            handles.pop().remove()

    return [Functions("first step", on_batch=begin, on_backward=note_gradients, on_step=end)]


def _record_redrawn_step(session: Session, recorded: Recorded) -> Sequence[Part]:
    """Record the first step with other random numbers in the forward and the loss."""
    session.loop.context.randomness.seed += 1
    return record_step(session, recorded)


def _use_float64(task: Task) -> Task:
    """Return a task whose model computes in float64."""

    def build() -> nn.Module:
        model = task.build_model().double()
        model.register_forward_pre_hook(_widen, with_kwargs=True)
        return model

    return replace(task, model=build)


def _widen(module: nn.Module, args: Any, kwargs: Any) -> Any:
    return tuple(map(_map_tensors, args)), _map_tensors(kwargs)


def _map_tensors(value: Any) -> Any:
    """Return nested tensors in float64, if they are of real numbers."""
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {name: _map_tensors(member) for name, member in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_map_tensors, value))
    return value


def find_differences(whole: Step, split: Step) -> Iterator[Difference]:
    """Yield what differs in the order of causes: outputs of modules, the loss, gradients."""
    for name in whole.outputs:
        yield from _compare_rows(name, whole.outputs, split.outputs)
    if whole.loss is not None and split.loss is not None:
        yield from _compare("loss", "sum over the items", whole.loss, split.loss)
    for name, gradient in whole.gradients.items():
        if name in split.gradients:
            yield from _compare("gradients", name, gradient, split.gradients[name])


def _compare_rows(
    name: str, whole: dict[str, list[Tensor]], split: dict[str, list[Tensor]]
) -> Iterator[Difference]:
    """Compare what a module got or returned for each sample, if its tensors have a row for each."""
    full, parts = whole.get(name, []), split.get(name, [])
    has_rows = len(full) == 1 and all(part.dim() for part in (*full, *parts))
    # Micro-batches may be padded to other lengths.
    has_rows = has_rows and len({part.shape[1:] for part in (*full, *parts)}) == 1
    if has_rows and sum(map(len, parts)) == len(full[0]):
        yield from _compare("outputs", name, full[0], torch.cat(parts))


def find_source(difference: Difference, whole: Step, split: Step) -> str:
    """Return the module that computed outputs that differ, with its line; "" for other values.

    If its inputs differ as well, they were computed by the forward of the module around it.
    """
    name = difference.place.name
    if difference.place.kind != "outputs":
        return ""
    if any(not one.is_rounding for one in _compare_rows(name, whole.inputs, split.inputs)):
        name = name.rpartition(".")[0]
    return f"{name or 'the model'}, {whole.lines[name]}" if whole.lines.get(name) else name


def _compare(kind: str, name: str, a: Tensor, b: Tensor) -> Iterator[Difference]:
    one, other = digest_value(a), digest_value(b)
    if one != other:
        yield compare_elements(Difference(Place(1, kind, name), one, other), a, b)


def _is_rounding(runner: Runner, size: int, difference: Difference) -> bool | None:
    """Return whether a difference of micro-batches is rounding; see `is_rounding_in_float64`."""

    def train() -> tuple[Step, Step]:
        sizes = (runner.facts.batch_size, size)
        variants = [make_variant(count, is_double=True) for count in sizes]
        whole, split = runner.train_all(variants)
        return whole.notes[0], split.notes[0]

    return is_rounding_in_float64(train, difference)


def is_rounding_in_float64(
    train: Callable[[], tuple[Step, Step]], difference: Difference
) -> bool | None:
    """Return whether a difference shrinks with the precision; None if float64 cannot be used.

    Args:
        train: trains both runs in float64, and returns their first steps.
        difference: of both in float32.
    """
    try:
        found = find_differences(*train())
    except RunFailedError:
        return False if (difference.relative or 0.0) > _LARGE else None
    wide = next((one for one in found if one.place == difference.place), None)
    if wide is None:
        return True
    if wide.largest is None or difference.largest is None:  # another shape
        return False
    return wide.largest <= _SHARE_OF_ROUNDING * difference.largest
