"""Each law is broken on purpose, and the check of its tests must fail.

A mutation is a plausible mistake, applied by monkeypatch, with the check that must detect it. A
check that passes under its mutation proves nothing, and fails here.
"""

import pickle
import random
import runpy
from bisect import bisect_left
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from surestep.cli import notify
from surestep.config.duration import parse_duration
from surestep.eject import assemble
from surestep.engine import own_generators, resolve, rng
from surestep.engine.data import apply_transform, batch_loader, seeded_call, sources
from surestep.engine.data.samplers import basic, weights
from surestep.engine.diagnose import preserve_step
from surestep.engine.evaluate import collect_predictions, evaluate
from surestep.engine.losses import classification
from surestep.engine.losses.multi import weighted_sum
from surestep.engine.model.attribute_writes import AttributeWrites
from surestep.engine.model.layers import layers_of
from surestep.engine.model.preserve import preserve_buffers
from surestep.engine.optim import freezing, param_groups
from surestep.engine.parallel import guards, single
from surestep.engine.plan import batching
from surestep.engine.plan.context import PlanContext
from surestep.engine.plan.fitting import SizesByStep
from surestep.engine.state import loss_spikes
from surestep.engine.step import fitted_steps, loop, train_step
from surestep.record.checkpoint import (
    discovery,
    load,
    optimizer_state,
    reader,
    retention,
    staging,
    writer,
)
from surestep.record.checkpoint.manifest import read_manifest
from surestep.record.run import Run
from surestep.record.run_writer import RunWriter
from surestep.trainer import build, config_diff, planning, run_identity, task_snapshot
from tests.laws.support.limited_memory import LIMITS, LimitedMemory
from tests.laws.support.limited_memory import task_of as limited_task
from tests.laws.support.stateful_streams import check_own_state
from tests.laws.test_buffers import Observed, task_of
from tests.laws.test_buffers import check_resume as check_buffers
from tests.laws.test_changing_buffers import check_killed as check_changing
from tests.laws.test_forward_attributes import check_resumed as check_resumed_attributes
from tests.laws.test_forward_attributes import check_run as check_attributes
from tests.laws.test_forward_attributes import check_skipped as check_skipped_attributes
from tests.laws.test_forward_writes import check_run as check_writes
from tests.laws.test_forward_writes import check_skipped as check_skipped_writes
from tests.laws.test_independence import check_run_is_independent, check_student
from tests.laws.test_law_1_fit import check as check_fit
from tests.laws.test_law_1_fit import check_generators
from tests.laws.test_law_1_several_losses import check_cut as check_several
from tests.laws.test_law_1_splitting import check_cut, check_nothing_to_learn
from tests.laws.test_law_1_transforms import check_mixed, check_own
from tests.laws.test_law_2_extending import check_extended
from tests.laws.test_law_2_fit import check_earlier as check_sizes
from tests.laws.test_law_2_global_generators import check_draws, early_draws, late_draws
from tests.laws.test_law_2_kills import check_kills
from tests.laws.test_law_2_resuming import (
    OwnNoise,
    check_callback_state,
    check_loads,
    check_nonpersistent_buffer,
    check_resume,
)
from tests.laws.test_law_2_rollback import check_resumed, check_rollback
from tests.laws.test_law_2_rollback_kills import check_killed_back
from tests.laws.test_law_2_samplers import check_order
from tests.laws.test_law_2_stream_states import take_state_after_prefetch
from tests.laws.test_law_3_ejected import check_smallest
from tests.laws.test_law_3_fp16 import check_clip
from tests.laws.test_law_3_parameter_groups import check_layers, check_switch
from tests.laws.test_law_3_plain_torch import GIVEN, check_exact, check_usual
from tests.laws.test_law_3_plain_torch import check_schedule as check_rates
from tests.laws.test_law_4_callbacks import check_callback, check_evaluation, check_workers
from tests.laws.test_law_4_decision_regions import check_recording
from tests.laws.test_law_4_diagnosis import check_untouched
from tests.laws.test_law_4_predictions import check_nothing_drawn
from tests.laws.test_law_4_range_tests import check_nothing_changed
from tests.laws.test_law_5_fp16 import check_overflow
from tests.laws.test_law_5_skipping import check_failure, check_skips
from tests.laws.test_law_6_calls import check_calls, check_files
from tests.laws.test_law_6_no_stall import check_no_reads
from tests.laws.test_law_7_durable import check_damage
from tests.laws.test_law_7_kills import check_calls as check_calls_of_a_save
from tests.laws.test_law_7_saving import check_background, check_two_saves
from tests.laws.test_law_8_notify import check_settings_of_a_folder
from tests.laws.test_law_8_reading import check_reading
from tests.laws.test_law_9_changes import check_change
from tests.laws.test_law_9_honest import check_option_value, check_unknown
from tests.laws.test_law_9_precision import check_precision
from tests.laws.test_law_9_rejections import check_rejection
from tests.torture import warm_process
from tests.torture.cases import Case
from tests.trainer.test_replay import check_replay, check_retention

# The package's attribute of that name is the function.
Folder = Callable[[], Path]
Patch = pytest.MonkeyPatch


class Mutation(NamedTuple):
    law: int
    name: str
    mutate: Callable[[Patch], None]
    check: Callable[[Folder], Any]


def after(owner: Any, name: str, then: Callable[..., Any]) -> Callable[[Patch], None]:
    """Replace the result of a function by `then(result, *args)`."""
    own = getattr(owner, name)
    return lambda patch: patch.setattr(
        owner, name, lambda *args, **kwargs: then(own(*args, **kwargs), *args)
    )


def before(owner: Any, name: str, first: Callable[..., Any]) -> Callable[[Patch], None]:
    """Call `first(*args)` before a function."""
    own = getattr(owner, name)

    def both(*args: Any, **kwargs: Any) -> Any:
        first(*args)
        return own(*args, **kwargs)

    return lambda patch: patch.setattr(owner, name, both)


def instead(owner: Any, name: str, other: Any) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(owner, name, other)


def nothing(*_: Any, **__: Any) -> None:
    return None


keep_only = train_step.BufferSnapshot.keep_only


def without_modes(modes: Any, *_: Any) -> None:
    modes.wanted = []


def schedule_moved(result: Any, parts: Any, _: Any) -> Any:
    place = parts.state.progress
    parts.state.progress = place._replace(steps_taken=place.step)
    return result


def clipped_first(_: None, parallel: Any, *__: Any) -> None:
    """Swap the order of `unscale` and `clip_grad_norm` in the step."""
    unscale, clip = parallel.unscale, parallel.clip_grad_norm

    def both() -> Any:
        norms = clip()
        unscale()
        return norms

    parallel.unscale, parallel.clip_grad_norm = nothing, both


ALWAYS_TAKEN = after(loop, "train_step", schedule_moved)


def by_history(owner: Any, name: str) -> Callable[[Patch], None]:
    """Draw from the current state of the generators, as most loops do."""
    return instead(owner, name, nothing)


def all_draw_by_history(patch: Patch) -> None:
    """The model and callbacks draw from one sequence."""
    by_history(rng.ModelRNG, "seed_for")(patch)
    instead(rng.SeparateRNG, "call", lambda _, step, function, *args: function(*args))(patch)


def seed_as_torch(seed: int) -> None:
    np.random.seed(seed % 2**32)
    random.seed(seed)


def without_split(purpose: str, *place: str | int) -> int:
    return rng.derive_seed(purpose, *place[:3], "train")


def unknown_data_by_history(patch: Patch) -> None:
    """Draw from the current state, and disable the fingerprint that would notice it on resume."""
    by_history(sources, "seed_sample")(patch)
    patch.setattr(run_identity, "_data", lambda _: {})


def mean_of_means(batch: Any, *_: Any) -> Any:
    parts = batch.micro_batches
    return batch._replace(items=parts[0].items * len(parts))


def ignore_set_value(option: str) -> Callable[[Patch], None]:
    """Decide an option as if it were not set."""

    def decide(ctx: PlanContext, own: Callable = resolve.RESOLVERS[option]) -> Any:
        rest = {name: value for name, value in ctx.set_options.items() if name != option}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ctx, "set_options", rest)
            return own(ctx)

    return lambda patch: patch.setitem(resolve.RESOLVERS, option, decide)


def accept(option: str) -> Callable[[Patch], None]:
    """Drop what is rejected of an option."""

    def decide(ctx: PlanContext, own: Callable = resolve.RESOLVERS[option]) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ctx, "reject", lambda message: None)
            return own(ctx)

    return lambda patch: patch.setitem(resolve.RESOLVERS, option, decide)


def forgetful(guard: Any, *_: Any) -> None:
    guard.nonfinite = torch.zeros(())


def chatty(self: Any, *_: Any) -> None:
    for _ in range(30):
        assert self.state is not None


def passed_over(
    self: Any, epoch: int, start: int, own: Callable = batch_loader.BatchLoader._read
) -> Any:
    return (batch for batch in own(self, epoch, 0) if batch.position >= start)


def by_micro_batch(
    self: Any, batch: Any, step: int, own: Callable = apply_transform.BatchTransform.__call__
) -> Any:
    parts = [own(self, batch._replace(micro_batches=(m,)), step) for m in batch.micro_batches]
    return batch._replace(micro_batches=tuple(part.micro_batches[0] for part in parts))


def unseeded(text: str, *_: Any) -> str:
    return text.replace("SEED, progress.step, position", "SEED, 0, 0")


def unclipped(text: str, *_: Any) -> str:
    return text.replace("(model.parameters(), MAX_GRAD_NORM", "(model.parameters(), 1e6")


def of_law(law: int, *rows: tuple[str, Callable, Callable]) -> list[Mutation]:
    return [Mutation(law, *row) for row in rows]


def turned(layers: Any) -> list[Any]:
    return [replace(layer, index=len(layers) + 1 - layer.index) for layer in layers]


ONE_GENERATOR = torch.Generator()
MASKED = "masked tokens, weighted"


def _unpickle(path):
    return pickle.loads(path.read_bytes())


def _run_recipe(path):
    if path.exists():
        runpy.run_path(str(path))


MUTATIONS = [
    *of_law(
        1,
        (
            "what a step left that ran out of memory stays",
            instead(fitted_steps, "_restore", nothing),
            lambda folder: check_fit(folder, LimitedMemory(LIMITS, "backward"), limited_task),
        ),
        (
            "callbacks get a batch again that ran out of memory",
            instead(loop.Loop, "_step_again", loop.Loop.step),
            lambda folder: check_fit(folder, LimitedMemory(LIMITS), limited_task),
        ),
        (
            "generators stay where a step ran out of memory",
            instead(rng.GlobalGenerators, "restore", nothing),
            check_generators,
        ),
        (
            "every micro-batch has the same weight",
            after(batch_loader.BatchLoader, "batch", mean_of_means),
            lambda folder: check_cut(folder, MASKED, 5),
        ),
        (
            "ignored targets count as items",
            instead(classification, "weighted_count", lambda targets, *_: targets.numel()),
            lambda folder: check_cut(folder, MASKED, 16),
        ),
        (
            "the last batch of an epoch counts as a whole one",
            after(
                batch_loader.BatchLoader,
                "batch",
                lambda batch, *_: batch._replace(items=16.0) if batch.ends_epoch else batch,
            ),
            lambda folder: check_cut(folder, "cross-entropy", 16),
        ),
        (
            "several losses are divided within their micro-batch",
            instead(
                train_step,
                "weighted_sum",
                lambda loss, outputs, micro, _, **rest: weighted_sum(
                    loss, outputs, micro, micro.part_items, **rest
                ),
            ),
            check_several,
        ),
        ("a step without items moves the schedule", ALWAYS_TAKEN, check_nothing_to_learn),
        (
            "mixup mixes every micro-batch separately",
            instead(apply_transform.BatchTransform, "__call__", by_micro_batch),
            lambda folder: check_mixed(folder, "mixup", 5),
        ),
        (
            "a share is drawn by history",
            by_history(seeded_call, "seed_loading"),
            lambda folder: check_mixed(folder, "cutmix", 16),
        ),
        (
            "a custom transform gets micro-batches",
            instead(apply_transform.BatchTransform, "__call__", by_micro_batch),
            check_own,
        ),
    ),
    *of_law(
        2,
        (
            "a size that fits is not written",
            instead(RunWriter, "durable_event", nothing),
            check_sizes,
        ),
        (
            "a size that fits is used from the checkpoint on",
            instead(
                SizesByStep,
                "at",
                lambda sizes, step: min((s for _, s in sizes._changes), default=None),
            ),
            check_sizes,
        ),
        (
            "a resumed epoch starts again",
            lambda patch: patch.setattr(
                batching.BatchLayout,
                "batches",
                lambda self, start, own=batching.BatchLayout.batches: own(self, 0),
            ),
            lambda folder: check_resume(folder),
        ),
        (
            "what was done is loaded again and passed over",
            instead(batch_loader.BatchLoader, "_read", passed_over),
            check_loads,
        ),
        (
            "a stream's state is that of what was read ahead",
            take_state_after_prefetch,
            partial(check_own_state, stop_at=7),
        ),
        (
            "an epoch continues the order of the one before",
            instead(weights, "order_generator", lambda *_: ONE_GENERATOR),
            lambda folder: check_order(folder, "weighted"),
        ),
        ("dropout by history", by_history(rng.ModelRNG, "seed_for"), check_resume),
        ("augmentation by history", unknown_data_by_history, check_resume),
        (
            "a callback's memory is not loaded",
            instead(load, "decode_states", lambda _: {}),
            check_callback_state,
        ),
        (
            "a buffer that no state_dict holds is not loaded",
            instead(load, "restore_buffers", nothing),
            check_nonpersistent_buffer,
        ),
        (
            "a buffer of a different dtype is converted",
            instead(load, "_has_dtypes_of", lambda *_: False),
            lambda folder: check_changing(folder, "gets wider, persistent"),
        ),
        (
            "a dataset's own generators by history",
            by_history(own_generators.OwnGenerators, "reseed"),
            lambda folder: check_resume(folder, OwnNoise),
        ),
        (
            "moments are not loaded",
            instead(load, "load_states", nothing),
            check_resume,
        ),
        (
            "every schedule is treated as independent of the length",
            instead(config_diff, "_first_difference", lambda *_: None),
            lambda folder: check_extended(folder, schedule={"name": "cosine"}),
        ),
        (
            "a step is taken again with dropout by history",
            by_history(rng.ModelRNG, "seed_for"),
            check_replay,
        ),
        (
            "a checkpoint that an incident needs is let go",
            instead(retention, "referenced_checkpoints", lambda _: set()),
            check_retention,
        ),
    ),
    *of_law(
        2,
        (
            "what is left out is trained on",
            instead(loss_spikes.SpikeDetector, "filter_batch", lambda _, batch, step: batch),
            check_rollback,
        ),
        (
            "what is left out is not loaded",
            instead(load, "_spikes", lambda **_: loss_spikes.SpikeDetector()),
            check_resumed,
        ),
        (
            "killed, what is left out is not loaded",
            instead(warm_process, "broken", "what is left out is not loaded"),
            check_killed_back,
        ),
        *(
            (
                f"killed, {name}",
                instead(warm_process, "broken", name),
                partial(check_kills, case=case),
            )
            for name, case in {
                "augmentation by history": Case(workers="other", augmentation="numpy"),
                "dropout by history": Case(data="tensors"),
                "the loss scale is not loaded": Case(precision="fp16", kill="step"),
                "the position of prefetched batches is saved": Case(kill="evaluation"),
            }.items()
        ),
    ),
    *of_law(
        2,
        (
            "a model's late draws from numpy are not noticed",
            instead(train_step, "_recompute_seeded", train_step.forward_backward),
            lambda folder: check_draws(folder, late_draws),
        ),
        (
            "numpy's generator is not seeded for the model",
            instead(np.random, "seed", nothing),
            lambda folder: check_draws(folder, early_draws),
        ),
    ),
    *of_law(
        3,
        (
            "an ejected script draws the same in each step",
            after(assemble, "specialize", unseeded),
            check_smallest,
        ),
        (
            "an ejected script clips nothing",
            after(assemble, "specialize", unclipped),
            check_smallest,
        ),
        (
            "clipping comes before the loss scale is taken out",
            after(single.SingleProcessStrategy, "__init__", clipped_first),
            check_clip,
        ),
        (
            "what is frozen is trained a step late",
            instead(freezing, "bisect_right", bisect_left),
            check_switch,
        ),
        (
            "the statistics of what is frozen move",
            instead(freezing, "norm_starts", lambda *_: {}),
            check_switch,
        ),
        (
            "layers are counted from the head",
            instead(param_groups, "layers_of", lambda model: turned(layers_of(model))),
            check_layers,
        ),
        (
            "another order",
            instead(
                basic,
                "epoch_permutation",
                lambda n, s, e: torch.randperm(n, generator=torch.Generator().manual_seed(s + e)),
            ),
            check_exact,
        ),
        (
            "weight decay for biases and norms too",
            instead(param_groups, "no_decay_params", lambda _: set()),
            lambda folder: check_usual(folder, GIVEN["tensors"]),
        ),
        (
            "the schedule is a step ahead",
            after(build, "make_lr_factor", lambda at, *_: lambda n: at(n + 1)),
            lambda folder: check_rates(folder, "warm-up, cosine"),
        ),
        ("dropout by history", by_history(rng.ModelRNG, "seed_for"), check_exact),
        (
            "numpy and Python draw the numbers of torch",
            instead(rng, "_seed_globals", seed_as_torch),
            check_run_is_independent,
        ),
        (
            "all sets are loaded with the seeds of the training data",
            instead(sources, "derive_seed", without_split),
            check_run_is_independent,
        ),
        (
            "the model function is seeded as by manual_seed()",
            instead(planning, "derive_seed", lambda _, seed: seed),
            check_student,
        ),
    ),
    *of_law(
        4,
        (
            "the mode is left as a watcher made it",
            instead(train_step.TrainModes, "__init__", without_modes),
            lambda folder: check_callback(folder, "on_batch", None),
        ),
        (
            "dropout by history",
            all_draw_by_history,
            lambda folder: check_callback(folder, "on_step", None),
        ),
        ("augmentation by history", by_history(sources, "seed_sample"), check_workers),
        (
            "an evaluation in train mode",
            instead(evaluate, "eval_mode", nullcontext),
            # BatchNorm rejects one sample in train mode
            lambda folder: check_evaluation(folder, (20, 7)),
        ),
        (
            "an evaluation leaves the buffers as its forward left them",
            instead(evaluate, "preserve_buffers", lambda *_, **__: nullcontext()),
            lambda folder: check_buffers(folder, lambda: task_of(Observed())),
        ),
        (
            "an evaluation leaves the parameters as its forward left them",
            instead(evaluate, "preserve_buffers", lambda *modules, **_: preserve_buffers(*modules)),
            lambda folder: check_writes(folder, "data"),
        ),
        (
            "an evaluation leaves the attributes as its forward left them",
            instead(evaluate, "preserve_buffers", lambda *modules, **_: preserve_buffers(*modules)),
            lambda folder: check_attributes(folder, "list"),
        ),
        (
            "the samples of a report are drawn",
            before(collect_predictions, "_positions", lambda *_: np.random.rand()),
            check_nothing_drawn,
        ),
        (
            "decision regions leave the buffers as their forward left them",
            instead(evaluate, "preserve_buffers", lambda *_, **__: nullcontext()),
            check_recording,
        ),
        (
            "a range test leaves its weights",
            instead(task_snapshot._Kept, "restore", lambda _: None),
            lambda folder: check_nothing_changed(folder()),
        ),
        (
            "a range test leaves the generators of the user as they are",
            instead(task_snapshot, "copy_states", lambda *_: []),
            lambda folder: check_nothing_changed(folder()),
        ),
        (
            "a checkpoint has no attributes",
            instead(AttributeWrites, "state_dict", lambda _: {}),
            lambda folder: check_resumed_attributes(folder, "later"),
        ),
        (
            "a diagnosis leaves the buffers as its forward left them",
            instead(preserve_step, "preserve_buffers", lambda *_, **__: nullcontext()),
            check_untouched,
        ),
        (
            "a diagnosis leaves the generators where its forward left them",
            instead(preserve_step, "preserve_torch_rng", nullcontext),
            check_untouched,
        ),
    ),
    *of_law(
        5,
        (
            "batch statistics are not put back",
            instead(train_step.BufferSnapshot, "restore", nothing),
            lambda folder: check_failure(folder, "both", 5),
        ),
        (
            "parameters that a forward changed are not put back",
            instead(
                train_step.BufferSnapshot, "keep_only", lambda buffers, _: keep_only(buffers, [])
            ),
            lambda folder: check_skipped_writes(folder, "max_norm", "raise"),
        ),
        (
            "a skipped step keeps the counts of its forward",
            instead(train_step.BufferSnapshot, "save_attributes", nothing),
            lambda folder: check_skipped_attributes(folder, "later", "raise", 2),
        ),
        (
            "the guard forgets a bad step",
            before(guards.DeviceGuard, "step", forgetful),
            lambda folder: check_failure(folder, "gradient", 2),
        ),
        (
            "the loss is not checked",
            instead(guards, "all_finite", lambda *values: bool(torch.isfinite(values[-1]))),
            lambda folder: check_skips(folder, "loss", on_nonfinite="skip"),
        ),
        (
            "a skipped step moves the schedule",
            ALWAYS_TAKEN,
            lambda folder: check_skips(folder, "both", on_nonfinite="skip"),
        ),
        ("an overflow moves the schedule", ALWAYS_TAKEN, check_overflow),
    ),
    *of_law(
        6,
        (
            "the norm is read",
            after(
                single.SingleProcessStrategy,
                "clip_grad_norm",
                lambda norms, *_: norms.total.item() and norms,
            ),
            check_no_reads,
        ),
        (
            "the loss is read",
            before(
                single.SingleProcessStrategy,
                "backward",
                lambda _, loss_sum, items: bool(loss_sum > 0),
            ),
            check_no_reads,
        ),
        ("forty calls more", before(loop.Loop, "step", chatty), check_calls),
        (
            "a file more",
            before(train_step, "forward_backward", lambda *_: parse_duration("1 step")),
            check_files,
        ),
    ),
    *of_law(
        7,
        (
            "the thread writes what is trained on",
            instead(
                staging.SnapshotStager,
                "_copy",
                lambda _, *tensors: staging.StagingBuffers(*tensors),
            ),
            check_background,
        ),
        (
            "a save does not wait for the one before",
            instead(writer.AsyncSaver, "wait", nothing),
            check_two_saves,
        ),
        (
            "hashes are not compared",
            instead(reader, "verify", read_manifest),
            lambda folder: check_damage(folder, damage="a bit in its middle"),
        ),
        (
            "damage is not reported",
            instead(RunWriter, "passed_over", ()),
            check_damage,
        ),
        *(
            (
                name,
                instead(warm_process, "broken", name),
                partial(check_calls_of_a_save, calls=calls),
            )
            for name, calls in {
                "a checkpoint has its name before its files": [6],
                "the old checkpoints are deleted first": [12],
            }.items()
        ),
    ),
    *of_law(
        8,
        (
            "a pickle is read where one lies",
            after(
                discovery,
                "read_record",
                lambda found, path: (_unpickle(path / "model.pkl"), found)[1],
            ),
            lambda folder: check_reading(folder, ("ckpt", "list", "run")),
        ),
        (
            "the recipe is run to know the run",
            after(Run, "__post_init__", lambda _, run: _run_recipe(run.path / "recipe.py")),
            lambda folder: check_reading(folder, ("ckpt", "export", "run", "out.pt")),
        ),
        (
            "the command that notifies is read from the working directory",
            instead(notify, "_locate_settings", lambda: Path("config.toml")),
            check_settings_of_a_folder,
        ),
    ),
    *of_law(
        9,
        (
            "the default replaces a set option",
            ignore_set_value("batch_size"),
            lambda _: check_option_value("batch_size"),
        ),
        (
            "tf32 is replaced without an error",
            accept("precision"),
            lambda _: check_rejection({"precision": "tf32", "device": "cpu"}, {}, "fp32"),
        ),
        (
            "what is not known is zero",
            instead(train_step.StepResult, "loss", property(lambda self: torch.zeros(()))),
            check_unknown,
        ),
        (
            "autocast is left out",
            instead(build, "autocast", lambda *_, **__: nullcontext()),
            lambda folder: check_precision(folder, "bf16"),
        ),
        (
            "the options of the checkpoint override the Config",
            instead(optimizer_state, "_is_built", lambda *_: False),
            lambda folder: check_change("optim.weight_decay", folder()),
        ),
    ),
]


@pytest.mark.filterwarnings("ignore:The .* data gives other samples")  # a broken seed
@pytest.mark.parametrize(
    "mutation", MUTATIONS, ids=[f"law {mutation.law}: {mutation.name}" for mutation in MUTATIONS]
)
def test_check_of_a_law_fails_if_the_law_is_broken(folder, monkeypatch, mutation):
    mutation.mutate(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        mutation.check(folder)


def test_every_law_has_a_mutation():
    files = Path(__file__).parent.glob("test_law_*.py")
    assert {mutation.law for mutation in MUTATIONS} == {
        int(path.name.split("_")[2]) for path in files
    }
