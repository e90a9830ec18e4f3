"""What each knob tries: on a CPU, on a GPU that is not here, and why it tries nothing."""

from dataclasses import replace

import pytest

from surestep.engine.allocator import Allocator
from surestep.engine.data.samplers import sequential
from surestep.engine.distributed.launcher_env import AccelerateConfig, LaunchInfo
from surestep.engine.plan.fitting import DROPOUT
from surestep.engine.plan.specs import TracedStep
from surestep.engine.resolve.resolver import resolve
from surestep.tuning.speed.knob import NotTried
from surestep.tuning.speed.list_knobs import list_knobs
from tests.tiny import FACTS, GIVEN, GPU, LOADED, OLD_GPU, config

KNOBS = list_knobs()
IMAGES = replace(GIVEN, convolutions=True)
BLOCKS = replace(GIVEN, blocks=True)
STREAM = replace(GIVEN, is_stream=True, train_samples=None)
NO_ATTENTION = replace(GIVEN, trace_step=lambda plan: TracedStep(0, ()))
ATTENDS = replace(GIVEN, trace_step=lambda plan: TracedStep(0, ("flash",)))
GROWS = replace(GIVEN, trace_step=lambda plan: TracedStep(plan.micro_batch_size))
HUGE_PAGES = replace(FACTS, allocator=Allocator(huge_pages=True))
LOADING = {"data": {"num_workers": 2}}
COMPILED = [{"compile": "default"}, {"compile": "max-autotune"}]
BY_BLOCK = {"compile": "default", "compile_blocks": True}
REPLAYED = {"compile": "reduce-overhead"}
FOUR_CORES = replace(FACTS, cpus=4)
SIX_CORES = replace(FACTS, cpus=6, threads=6)
TWO_RANKS = replace(FACTS, cpus=4, launched=LaunchInfo(0, 2, 0, 2, "torchrun"))
ACCELERATE = replace(FACTS, accelerate=AccelerateConfig())
PILLOW = replace(FACTS, extras=("PIL",), memory=8e9)
MEMORY = replace(GPU, cuda_memory=(40,))


def workers(*counts):
    return [{"data.num_workers": count} for count in counts]


def split(count, threads):
    return {"data.num_workers": count, "num_threads": threads}


def ahead(*counts):
    return [{"data.prefetch_factor": count} for count in counts]


def sizes(*counts):
    return [{"micro_batch_size": count} for count in counts]


# knob, machine, what the Task brings, options that are set, what is tried
TRIED = [
    ("workers", FACTS, GIVEN, {}, workers(1, 2, 4)),
    ("workers", FOUR_CORES, GIVEN, LOADING, workers(0, 1, 4, 6)),
    ("workers", TWO_RANKS, GIVEN, {}, workers(1, 2, 4)),
    ("workers", GPU, GIVEN, {}, workers(0, 1, 2, 8, 10)),
    ("workers", FACTS, STREAM, {"max_steps": 5}, workers(1)),
    (
        "workers_and_threads",
        SIX_CORES,
        GIVEN,
        {},
        [split(1, 5), split(2, 4), split(4, 2), split(6, 1)],
    ),
    (
        "workers_and_threads",
        SIX_CORES,
        GIVEN,
        LOADING | {"num_threads": 4},
        [split(4, 2), split(6, 1)],
    ),
    (
        *("persistent_workers", FACTS, GIVEN),
        {"data": {"num_workers": 2, "persistent_workers": False}},
        [{"data.persistent_workers": True}],
    ),
    ("cuda_graph", GPU, GIVEN, {}, [{"cuda_graph": True}]),
    ("prefetch", FACTS, GIVEN, LOADING, ahead(4, 8)),
    ("prefetch", FACTS, GIVEN, {"data": {"num_workers": 1, "prefetch_factor": 3}}, ahead(6, 12)),
    (
        *("pinned_memory", GPU, GIVEN, {"data": {"pin_memory": False}}),
        [{"data.pin_memory": True}],
    ),
    (
        *("fused_optimizer", FACTS, GIVEN, {"optim": {"implementation": "for_loop"}}),
        [{"optim.implementation": "fused"}, {"optim.implementation": "foreach"}],
    ),
    (
        *("fused_optimizer", GPU, GIVEN, {"optim": {"implementation": "foreach"}}),
        [{"optim.implementation": "fused"}],
    ),
    (
        *("fused_optimizer", FACTS, replace(GIVEN, floating=False)),
        {"optim": {"implementation": "for_loop"}},
        [{"optim.implementation": "foreach"}],
    ),
    (
        *("fused_optimizer", FACTS, replace(GIVEN, half=True)),
        {"optim": {"name": "sgd", "implementation": "for_loop"}},
        [{"optim.implementation": "foreach"}],
    ),
    ("keep_decoded", PILLOW, GIVEN, {}, [{"data.keep_decoded": "4000MB"}]),
    (
        *("group_by_length", FACTS, replace(GIVEN, collates=True), {}),
        [{"data.group_by_length": True}],
    ),
    ("threads", FOUR_CORES, GIVEN, {}, [{"num_threads": 2}, {"num_threads": 4}]),
    ("threads", TWO_RANKS, GIVEN, {"num_threads": 2}, [{"num_threads": 1}]),
    ("channels_last", FACTS, IMAGES, {}, [{"channels_last": True}]),
    ("attention_backend", FACTS, GIVEN, {}, [{"sdpa_backend": n} for n in ("flash", "math")]),
    ("attention_backend", FACTS, ATTENDS, {}, [{"sdpa_backend": n} for n in ("flash", "math")]),
    (
        *("attention_backend", GPU, ATTENDS, {"sdpa_backend": "flash"}),
        [{"sdpa_backend": name} for name in ("efficient", "cudnn", "math")],
    ),
    ("compiled", FACTS, GIVEN, {}, COMPILED),
    ("compiled", FACTS, BLOCKS, {}, [COMPILED[0], BY_BLOCK, COMPILED[1]]),
    ("compiled", GPU, BLOCKS, {}, [COMPILED[0], BY_BLOCK, REPLAYED, COMPILED[1]]),
    ("compiled", TWO_RANKS, BLOCKS, {"parallel": "fsdp"}, [COMPILED[0]]),
    (
        *("tf32", GPU, GIVEN, {"precision": "fp32"}),
        [{"precision": "tf32", "matmul_precision": "high"}],
    ),
    (
        *("tf32", GPU, GIVEN, {"precision": "fp32", "matmul_precision": "highest"}),
        [{"precision": "tf32", "matmul_precision": "high"}],
    ),
    ("bf16", FACTS, GIVEN, {}, [{"precision": "bf16"}]),
    ("bf16", GPU, GIVEN, {"precision": "tf32"}, [{"precision": "bf16"}]),
    (
        *("micro_batch", FACTS, replace(GIVEN, not_splitting=(DROPOUT,))),
        {"micro_batch_size": 2, "batch_size": 12},
        sizes(4, 8, 12),
    ),
    ("micro_batch", MEMORY, GROWS, {"micro_batch_size": 8, "batch_size": 64}, sizes(16, 32)),
    ("micro_batch", TWO_RANKS, GIVEN, {"micro_batch_size": 2, "batch_size": 16}, sizes(4, 8)),
    (
        *("activation_checkpointing", FACTS, BLOCKS, {"activation_checkpointing": "on"}),
        [{"activation_checkpointing": "off"}],
    ),
    ("cudnn_benchmark", GPU, IMAGES, {}, [{"cudnn_benchmark": True}]),
    (
        *("allocator", HUGE_PAGES, GIVEN, {"cpu_allocator": "default"}),
        [{"cpu_allocator": "huge_pages"}, {"cpu_allocator": "retain"}],
    ),
    (
        *("allocator", HUGE_PAGES, GIVEN, {"cpu_allocator": "retain"}),
        [{"cpu_allocator": "huge_pages"}],
    ),
    ("allocator", FACTS, GIVEN, {"cpu_allocator": "default"}, [{"cpu_allocator": "retain"}]),
]
# knob, machine, what the Task brings, options that are set, a part of the reason
NOT_TRIED = [
    ("workers", FACTS, replace(GIVEN, in_memory=True), {}, "tensors in memory"),
    ("workers", FACTS, replace(GIVEN, no_data=True), {"max_steps": 5}, "no training data"),
    ("workers", replace(FACTS, is_daemon=True), GIVEN, {}, "daemon"),
    ("workers", FACTS, LOADED, {}, "num_workers=3: set it there"),
    ("workers_and_threads", GPU, GIVEN, {}, "the device is cuda"),
    ("workers_and_threads", SIX_CORES, GIVEN, {"num_threads": 1}, "no worker would get a core"),
    ("workers_and_threads", SIX_CORES, replace(GIVEN, in_memory=True), {}, "tensors in memory"),
    ("persistent_workers", FACTS, GIVEN, {}, "no workers"),
    ("persistent_workers", FACTS, GIVEN, LOADING, "persist already"),
    ("persistent_workers", FACTS, LOADED, {}, "persistent_workers=False: set it there"),
    ("cuda_graph", FACTS, GIVEN, {}, "the device is cpu"),
    ("cuda_graph", GPU, GIVEN, {"cuda_graph": True}, "replayed already"),
    ("cuda_graph", GPU, GIVEN, {"compile": "default"}, "the model is compiled"),
    ("cuda_graph", GPU, GIVEN, {"precision": "fp16"}, "the host reads the loss scale"),
    ("cuda_graph", GPU, GIVEN, {"activation_checkpointing": "on"}, "recomputed"),
    ("prefetch", FACTS, GIVEN, {}, "no workers"),
    ("prefetch", FACTS, LOADED, {}, "prefetch_factor=4: set it there"),
    ("pinned_memory", FACTS, GIVEN, {}, "the device is cpu"),
    ("pinned_memory", GPU, GIVEN, {}, "page-locked memory already"),
    ("pinned_memory", GPU, LOADED, {}, "pin_memory=False: set it there"),
    ("fused_optimizer", FACTS, replace(GIVEN, own_optimizer=True), {}, "brings its optimizer"),
    ("fused_optimizer", FACTS, replace(GIVEN, sparse=("table",)), {}, "of table is sparse"),
    ("fused_optimizer", FACTS, GIVEN, {}, "fused is the fastest"),
    ("fused_optimizer", FACTS, GIVEN, {"optim": "radam"}, "foreach is the fastest"),
    ("keep_decoded", PILLOW, GIVEN, {"data": {"keep_decoded": "2GB"}}, "already, in 2GB"),
    ("keep_decoded", PILLOW, replace(GIVEN, in_memory=True), {}, "has no dataset that opens files"),
    ("keep_decoded", replace(PILLOW, extras=()), GIVEN, {}, "Pillow is not installed"),
    ("keep_decoded", replace(FACTS, extras=("PIL",)), GIVEN, {}, "is not known"),
    ("group_by_length", FACTS, GIVEN, {}, "are stacked"),
    ("group_by_length", FACTS, replace(GIVEN, batched=True), {}, "no dataset of single samples"),
    ("group_by_length", FACTS, replace(GIVEN, order=sequential()), {}, "an order: sequential"),
    ("threads", GPU, GIVEN, {}, "the device is cuda"),
    ("threads", replace(FACTS, cpus=1), GIVEN, {}, "one core"),
    ("channels_last", FACTS, GIVEN, {}, "no convolutions"),
    ("channels_last", FACTS, IMAGES, {"channels_last": True}, "format already"),
    ("attention_backend", FACTS, NO_ATTENTION, {}, "no scaled_dot_product_attention"),
    ("compiled", FACTS, GIVEN, {"compile": "default"}, "in the mode default"),
    ("compiled", replace(FACTS, compiler=False), GIVEN, {}, "C++ compiler"),
    ("tf32", FACTS, GIVEN, {}, "Ampere"),
    ("tf32", OLD_GPU, GIVEN, {}, "Ampere"),
    ("tf32", GPU, GIVEN, {}, "precision is bf16"),
    ("bf16", GPU, GIVEN, {}, "precision is bf16"),
    ("bf16", OLD_GPU, GIVEN, {}, "emulates it"),
    ("bf16", ACCELERATE, GIVEN, {}, "accelerate"),
    ("micro_batch", FACTS, GIVEN, {}, "are one micro-batch"),
    ("micro_batch", MEMORY, GROWS, {"micro_batch_size": 32}, "of 64 samples do not fit"),
    ("micro_batch", FACTS, replace(GIVEN, batched=True), {}, "the Task makes them"),
    (
        *("micro_batch", FACTS, replace(GIVEN, not_splitting=("batch statistics",))),
        *({"micro_batch_size": 2}, "would change the update: batch statistics"),
    ),
    ("activation_checkpointing", FACTS, GIVEN, {}, "stored already"),
    ("cudnn_benchmark", FACTS, IMAGES, {}, "the device is cpu"),
    ("cudnn_benchmark", GPU, GIVEN, {}, "no convolutions"),
    ("cudnn_benchmark", GPU, IMAGES, {"cudnn_benchmark": True}, "on already"),
    ("cudnn_benchmark", GPU, IMAGES, {"deterministic": True}, "excludes it"),
    ("allocator", GPU, GIVEN, {}, "PYTORCH_CUDA_ALLOC_CONF"),
    ("allocator", FACTS, GIVEN, {}, "'retain' is the best"),
    ("allocator", HUGE_PAGES, GIVEN, {}, "'huge_pages' is the best"),
    ("allocator", replace(FACTS, allocator=Allocator("jemalloc")), GIVEN, {}, "jemalloc"),
    (
        *("allocator", replace(FACTS, allocator=Allocator(settings=("MALLOC_ARENA_MAX",)))),
        *(GIVEN, {}, "MALLOC_ARENA_MAX is set"),
    ),
]


def decide(machine, info, set_options):
    size = 64 if info.loader is None else info.loader["batch_size"]
    return resolve(config(**{"batch_size": size, **set_options}), machine, info)


@pytest.mark.parametrize(("name", "machine", "info", "set_options", "expected"), TRIED)
def test_candidates_are_those_that_can_be_set(name, machine, info, set_options, expected):
    found = list(KNOBS[name].candidates(decide(machine, info, set_options), machine))
    assert found == expected
    before = config(**{"batch_size": 64, **set_options})
    for options in found:
        after = resolve(before.replace_options(options), machine, info)
        for option, value in options.items():
            assert getattr(after, option.replace(".", "_")) == value


@pytest.mark.parametrize(("name", "machine", "info", "set_options", "reason"), NOT_TRIED)
def test_knob_says_why_it_tries_nothing(name, machine, info, set_options, reason):
    with pytest.raises(NotTried) as caught:
        KNOBS[name].candidates(decide(machine, info, set_options), machine)
    assert reason in str(caught.value)


def test_every_knob_is_in_both_tables():
    assert {name for name, *_ in TRIED} == set(KNOBS)
    assert {name for name, *_ in NOT_TRIED} == set(KNOBS)
