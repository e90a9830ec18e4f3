"""Print the plain PyTorch script of a recipe's Plan."""

import ast
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from surestep.base.errors import RecipeError
from surestep.eject.assemble import assemble
from surestep.eject.choices import Choices, flags_of
from surestep.eject.data import choose_loading, is_pair, list_targets, loads
from surestep.eject.freezing import choose_freezing
from surestep.eject.initial import choose_initial, choose_teacher
from surestep.eject.layout import format_call, remove_comments
from surestep.eject.limits import (
    check_callbacks,
    check_config,
    check_model,
    check_plan,
    check_statistics,
    check_task,
)
from surestep.eject.loss import choose_loss
from surestep.eject.optimizer import choose_optimizer
from surestep.eject.order import SAMPLED_BY, check_sampler, choose_order, read_sampler
from surestep.eject.parameters import find_task, remove_unused
from surestep.eject.probe import find_metric_kinds
from surestep.eject.recipe import (
    TaskCall,
    check_source,
    inline_recipes,
    list_metrics,
    read_task_call,
    replace_task,
)
from surestep.eject.schedule import choose_schedule
from surestep.eject.source import Source, read_source
from surestep.eject.training import choose_training
from surestep.engine.plan.system import SystemInfo
from surestep.engine.task.task import Task
from surestep.recipes.load import RecipeCall
from surestep.trainer.planning import PreparedTask, plan_task

_DRAWS_NOTHING = {"torch", "numpy", "sklearn"}  # numpy apart from numpy.random
_FUNCTION = "Callable[[Tensor, Tensor], Any]"
_PART_TYPES = {
    "model": "nn.Module",
    "init": "dict[str, Tensor] | None  # initial weights",
    "teacher": "nn.Module",
    "loss": "Callable[[Tensor, Tensor], Tensor]  # a mean",
    "train": "tuple[Tensor, Tensor]  # inputs and targets",
    "val": "tuple[Tensor, Tensor]",
    "collate_fn": "Callable[[list[Any]], Any]  # makes a batch of samples",
    "metrics": f"dict[str, {_FUNCTION}]  # means",
    "ratios": f"dict[str, {_FUNCTION}]  # each a sum and a count",
    "of_all": f"dict[str, {_FUNCTION}]  # of all outputs at once",
}


def print_script(
    call: RecipeCall,
    origin: str,
    *,
    system: SystemInfo | None = None,
    has_comments: bool = True,
    has_checks: bool = False,
) -> str:
    """Return the plain PyTorch script of a Plan.

    On a CPU, it trains the weights of the run, bit for bit.

    Args:
        call: the recipe with its options.
        origin: what the script trains the weights of, for its first lines.
        system: the machine; by default this one.
        has_comments: whether there are comments.
        has_checks: whether there are assertions.

    Raises:
        RecipeError: the recipe or the Plan has what eject does not print.
    """
    found = read_task_call(call.recipe.path)
    _check_names(found, call.recipe.path)
    check_callbacks(call.recipe.callbacks)
    check_config(call.config)
    task = call.task(system)
    check_task(task)
    sampler = read_sampler(found)
    check_sampler(task, sampler)
    planned = plan_task(task, call.config, origin=call.origin, system=system)
    check_plan(planned.plan, task)
    kinds = find_metric_kinds(planned)
    parts = _list_parts(found, planned, kinds)
    text = remove_unused(replace_task(found, parts))
    recipe = inline_recipes(read_source(text))
    needed = recipe.reach(["task"])
    check_source(recipe, needed, call.recipe.path)
    modules = {call.recipe.module.__name__, *_inlined_modules(found.source)}
    check_model(planned.model, modules)
    check_statistics(planned.plan, planned.model, planned.task)
    names = {one.arg for one in find_task(text).args.args}
    given = {name: value for name, value in call.parameters.items() if name in names}
    choices = choose_order(task, sampler) | _choose(planned, given, parts)
    choices |= Choices(
        flags_of(checks=has_checks),
        renamed=_choose_seeding(needed),
        code=(_parts_code(planned, parts, sampler.kind),),
    )
    head = _head(found.source.doc, origin, call.recipe.callbacks, planned.plan.parallel_ranks)
    script = assemble(choices, needed, head)
    return script if has_comments else remove_comments(script)


def _check_names(found: TaskCall, path: Path) -> None:
    """Check, before anything runs, what the recipe uses of surestep."""
    fields = ("model", "init", "teacher", "train", "val", "collate_fn")
    parts = {name: found.argument_text(name) for name in fields if name in found.arguments}
    loss = found.arguments.get("loss")
    if isinstance(loss, (ast.Name, ast.Lambda)):
        parts["loss"] = found.argument_text("loss")
    sampled_by = read_sampler(found).sampled_by
    parts |= {} if sampled_by is None else {"sampled_by": sampled_by}
    metrics = ", ".join(list_metrics(found).values())
    source = inline_recipes(read_source(replace_task(found, {**parts, "metrics": f"[{metrics}]"})))
    check_source(source, source.reach(["task"]), path)


def _list_parts(found: TaskCall, planned: PreparedTask, kinds: Mapping[str, str]) -> dict[str, str]:
    """Return the source of each part that the script needs."""
    task = planned.task
    parts = {"model": found.argument_text("model")}
    if "init" in found.arguments:
        parts["init"] = found.argument_text("init")
    if task.teacher is not None:
        parts["teacher"] = found.argument_text("teacher")
    if planned.loss.kind == "other":
        parts["loss"] = found.argument_text("loss")
    parts["train"] = _data_text(found, task, "train")
    if task.val is not None:
        parts["val"] = _data_text(found, task, "val")
    sampled_by = read_sampler(found).sampled_by
    if sampled_by is not None:
        parts["sampled_by"] = sampled_by
    if task.collate_fn is not None:
        parts["collate_fn"] = found.argument_text("collate_fn")
    if task.val is None:
        return parts
    metrics = list_metrics(found)
    for kind in ("metrics", "ratios", "of_all"):
        own = [f'"{name}": {metrics[name]}' for name in metrics if kinds[name] == kind]
        if own:
            parts[kind] = f"{{{', '.join(own)}}}"
    return parts


def _data_text(found: TaskCall, task: Task, split: str) -> str:
    """Return the source of the data of a split; if samples are loaded, it is a Dataset."""
    text = found.argument_text(split)
    if not loads(task) or not is_pair(getattr(task, split)):
        return text
    node = found.arguments[split]
    return f"TensorDataset{text}" if isinstance(node, ast.Tuple) else f"TensorDataset(*{text})"


def _choose(planned: PreparedTask, given: Mapping[str, Any], parts: Mapping[str, str]) -> Choices:
    """Return what the Plan, and the given parameters of `task`, choose of the template code."""
    task, plan = planned.task, planned.plan
    builds = not planned.info.is_built
    arguments = [f"{name}={_literal(name, value)}" for name, value in given.items()]
    task_call = format_call("task", arguments, depth=4, start="parts = ")
    names = ("init", "metrics", "ratios", "of_all")
    targets = list_targets(task, plan.validation_batch_size)
    counted = choose_loss(task, planned.loss.module, targets)
    by_items = task.val is not None and planned.loss.count(targets[-1]) != len(targets[-1])
    by_items |= loads(task) and " != " in counted.renamed.get("count_items(y)", "")
    by_sample = "len(rows)" in counted.renamed.values() and not by_items and "ratios" not in parts
    return (
        choose_training(plan, planned.model, builds=builds, has_val=task.val is not None)
        | choose_schedule(plan.schedule, has_betas="betas" in plan.optim_options)
        | choose_optimizer(plan, planned.model)
        | choose_freezing(plan, planned.model)
        | choose_initial(task, planned.model)
        | choose_teacher(task)
        | counted
        | Choices(
            flags_of(by_items=by_items, by_sample=by_sample, **{n: n in parts for n in names})
        )
        | Choices(renamed={"    parts = task()": task_call})
        | choose_loading(task, calls_loss="loss" in parts)
    )


def _literal(name: str, value: Any) -> str:
    """Return the source of an argument of `task`."""
    try:
        ast.literal_eval(repr(value))
    except (ValueError, SyntaxError) as error:
        raise RecipeError(
            f"task.{name}={value!r} has no form as source. Set it in the recipe."
        ) from error
    return repr(value)


def _choose_seeding(source: Source) -> dict[str, str]:
    """Return what to write for the seeding of torch alone."""
    torch_alone = "torch.manual_seed(derive_seed("
    return {torch_alone: "seed_generators(derive_seed("} if _draws_elsewhere(source) else {}


def _draws_elsewhere(source: Source) -> bool:
    """Return whether code may draw from the generators of numpy or Python."""
    nodes = (node for one in source.statements for node in ast.walk(one.node))
    named = {source.resolve(node) for node in nodes if isinstance(node, (ast.Attribute, ast.Name))}
    if any(name.startswith("numpy.random") for name in named):
        return True
    at_top = {found.module for found in source.imports.values()}
    modules = source.imported_modules()
    within = modules - at_top  # whose names are not resolved
    tops = {module.partition(".")[0] for module in modules}
    draws_nothing = sys.stdlib_module_names | _DRAWS_NOTHING
    return "random" in tops or "numpy" in within or not tops <= draws_nothing


def _inlined_modules(source: Source) -> set[str]:
    modules = {found.module for found in source.imports.values()}
    return {name for name in modules if name.startswith("surestep.recipes.")}


def _parts_code(planned: PreparedTask, parts: Mapping[str, str], sampler: str) -> str:
    types = _PART_TYPES | {"sampled_by": SAMPLED_BY.get(sampler, "")}
    if loads(planned.task):
        types |= {"train": "Any  # a Dataset of inputs with their targets", "val": "Any"}
    if not planned.info.is_built:
        types["model"] = "Callable[[], nn.Module]"
    if not isinstance(planned.task.teacher, nn.Module):
        types["teacher"] = "Callable[[], nn.Module]"
    fields = "".join(f"    {name}: {types[name]}\n" for name in parts)
    return f'class Parts(NamedTuple):\n    """What task() returns."""\n\n{fields}'


def _head(doc: str, origin: str, callbacks: Sequence[object], ranks: int) -> str:
    """Return the docstring of the script."""
    first = doc.partition("\n")[0] or "Train a model."
    if '"""' in first + origin or "\\" in first + origin or not origin.isprintable():
        first, origin = "Train a model.", "a run of surestep"
    about = ["Plain PyTorch. On a CPU, it trains the weights of", f"{origin}, bit for bit."]
    if ranks > 1:
        about[1:] = [f"{origin} with {ranks} processes, within rounding."]
        about += [f"Start it with torchrun --nproc-per-node {ranks}."]
    if callbacks:
        about += [f"Left out: the callback {', '.join(type(one).__name__ for one in callbacks)}."]
    again = "Run it again to resume from last.pt. Delete last.pt and best.pt to start again."
    return "\n".join(['"""' + first, "", *about, again, '"""\n'])
