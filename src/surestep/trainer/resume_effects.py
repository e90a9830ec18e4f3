"""What a change means for a run that is gone on with: a verdict and its reason, for each option.

The one table. An option of the Config stands in it by its name or by its group; `epochs` and
`max_steps` are judged by what they do to the schedule (`lengthening.py`).
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

Kind = Literal["harmless", "not bit for bit", "refused", "allowed", "impossible"]


class ResumeEffect(NamedTuple):
    """What becomes of a run that goes on with a change.

    `kind` is one of: "harmless", the numbers are the same; "not bit for bit", it goes on and the
    last digits may differ; "refused", unless it is allowed by its name; "allowed", where it was;
    "impossible".
    """

    effect: Kind
    reason: str

    def __str__(self) -> str:
        word = "refused" if self.effect == "impossible" else self.effect
        return (
            f"{word} because {self.reason}"
            if word == "not bit for bit"
            else (f"{word}: {self.reason}")
        )


def _harmless(reason: str) -> ResumeEffect:
    return ResumeEffect("harmless", reason)


def _rounds(reason: str) -> ResumeEffect:
    return ResumeEffect("not bit for bit", reason)


def _refused(reason: str) -> ResumeEffect:
    return ResumeEffect("refused", reason)


LENGTH = ("epochs", "max_steps")
SHOWN = _harmless("it changes what is shown and kept, not what is computed")
LOADING = _harmless("samples are seeded by their place, whoever loads them")
KERNELS = _rounds("other kernels round otherwise")
UPDATE = _refused("each update would be another one than until now")
BATCHES = _refused("the batches would be others than until now")
ENDING = _harmless("it says when the run ends, and no step is another")
STARTED = ResumeEffect("impossible", "it sets what the state starts from, and this run has started")
DIGITS = _refused("the numbers would have more or fewer digits than until now")

VERDICTS: Mapping[str, ResumeEffect] = {
    **dict.fromkeys(LENGTH, _refused("the schedule would be another one than until now")),
    "max_time": ENDING,
    "limit_train_batches": BATCHES,
    "limit_val_batches": _refused("the best so far was measured on other samples"),
    "batch_size": BATCHES,
    "micro_batch_size": _rounds("sums and dropout are taken over other parts"),
    "seed": _refused("order, augmentation and dropout would be drawn anew"),
    "deterministic": KERNELS,
    "device": _rounds("another device rounds otherwise"),
    "precision": DIGITS,
    "max_grad_norm": UPDATE,
    "clip_value": UPDATE,
    "on_nonfinite": _harmless("it matters only at a step that is not finite"),
    "max_nonfinite_steps": _harmless("it matters only at a step that is not finite"),
    "on_spike": _harmless("it matters only at a loss that jumps"),
    "max_rollbacks": _harmless("it matters only at a loss that jumps"),
    "activation_checkpointing": KERNELS,
    "compile": KERNELS,
    "compile_blocks": KERNELS,
    "channels_last": KERNELS,
    "matmul_precision": DIGITS,
    "cudnn_benchmark": KERNELS,
    "sdpa_backend": KERNELS,
    "cpu_allocator": _harmless("it decides when freed memory is reused, not what is computed"),
    "profile": SHOWN,
    "parallel.": _rounds("sums and dropout are taken over other parts"),
    "parallel.nccl_debug": SHOWN,
    "parallel.replica_check_every": _harmless("it compares, and moves no weight"),
    "parallel.offload": KERNELS,
    "parallel.find_unused_parameters": _rounds("gradients are added up in another order"),
    "parallel.static_graph": _rounds("gradients are added up in another order"),
    "parallel.sync_batchnorm": _refused("BatchNorm would take its statistics over other samples"),
    "parallel.timeout_s": _harmless("it says how long a rank waits for the others"),
    "parallel.start_timeout_s": _harmless("it says how long a rank waits for the others"),
    "optim.": UPDATE,
    "optim.name": ResumeEffect("impossible", "the state of one optimizer does not fit another"),
    "optim.initial_accumulator_value": STARTED,
    "optim.min_8bit_size": STARTED,
    "schedule.": _refused("the rate would go on by another curve than until now"),
    "scaler.init_scale": STARTED,
    "scaler.": _refused("the loss scale would move otherwise than until now"),
    "data.num_workers": LOADING,
    "data.pin_memory": LOADING,
    "data.persistent_workers": LOADING,
    "data.prefetch_factor": LOADING,
    "data.drop_last": BATCHES,
    "data.shuffle": BATCHES,
    "data.shuffle_buffer": BATCHES,
    "validation.every": _harmless("evaluations move no weight"),
    "validation.on_start": _harmless("evaluations move no weight"),
    "validation.batch_size": _rounds("metrics are summed in other parts"),
    "validation.weights": _refused("the best so far was measured on other weights"),
    "validation.metric": _refused("the best so far was judged by another metric"),
    "validation.mode": _refused("the best so far was judged the other way round"),
    "early_stop.": ENDING,
    "average.buffers": ResumeEffect("impossible", "the average so far holds other buffers"),
    "average.": _refused("the average so far was made otherwise"),
    "checkpoint.": SHOWN,
    "logging.": SHOWN,
    # Of a run and not of its Config:
    "data.sampler": BATCHES,
    "batch_transform": BATCHES,
    "optim.implementation": KERNELS,
    "task.": _refused("the recipe would be called with another value"),
    "recipe": _refused("other code would go on with the run"),
    "recipe.path": _harmless("the same file in another place"),
    "code": _rounds("it may compute otherwise than until now"),
    "exclude_samples": _refused("other samples would be left out than until now"),
    "data": _refused("it would train on other samples"),
    "loss": _refused("another function would be minimised"),
    "model": ResumeEffect("impossible", "no checkpoint of the one fits the other"),
    "modules": _refused("another function would be trained than until now"),
    "settings": _rounds("what your module makes of it is not known"),
    "torch": _rounds("another build of torch may round otherwise"),
    "surestep": _rounds("another version may compute otherwise"),
    "threads": _rounds("another number of threads sums in another order"),
}
UNKNOWN = _refused("what it changes is not known")
COUNTED = _rounds("evaluations are counted by what stops the run or lowers its rate")
PARTS = _refused("each worker reads a part of the stream, so the batches would be others")


def resume_effect(name: str) -> ResumeEffect:
    """Return the verdict on a change of `name`; one of several optimizers' options is an option."""
    if name.startswith("optimizers."):
        name = name.split(".", 2)[2]
    group = name.partition(".")[0] + "."
    return VERDICTS.get(name) or VERDICTS.get(group) or UNKNOWN
