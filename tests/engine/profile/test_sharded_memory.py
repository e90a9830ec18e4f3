"""Estimated memory of each rank, compared with published numbers and torch's shard sizes."""

import pytest
import torch
from torch import nn

from surestep.engine.batch import tensor_bytes
from surestep.engine.model.layers import blocks_of
from surestep.engine.profile.rank_memory import (
    RankMemory,
    estimate_rank_memory,
    sharded_bytes,
)
from surestep.engine.profile.step_memory import StepMemory
from tests.needs import needs

GB = 10**9


def adamw(model: nn.Module) -> StepMemory:
    """Memory of a model in one process with AdamW, without the step counters."""
    size = tensor_bytes(model.parameters())
    return StepMemory(1, size, 0, 0, 2 * size, 0, copies=size // 2)


@pytest.fixture(scope="module")
def llama() -> nn.Module:
    """Llama 2 with 7B parameters on the meta device."""
    transformers = needs("transformers")
    with torch.device("meta"):
        return transformers.LlamaForCausalLM(transformers.LlamaConfig())


def of(model: nn.Module, ranks: int, local: int, precision: str) -> dict[str, RankMemory]:
    blocks = list(blocks_of(model).values())
    how = {"blocks": blocks, "ranks": ranks, "local": local, "precision": precision}
    return {each.strategy: each for each in estimate_rank_memory(model, adamw(model), **how)}


@pytest.mark.slow("needs transformers")
def test_adam_with_mixed_precision_takes_16_to_18_bytes_per_parameter(llama):
    alone, numbers = of(llama, 1, 1, "bf16"), sum(each.numel() for each in llama.parameters())
    assert numbers == 6_738_415_616
    assert alone["ddp"].total / numbers == 18  # fp32 weights, gradients, moments; bf16 copies
    assert alone["deepspeed zero 1"].total / numbers == 16  # the number in the ZeRO paper
    for way in ("ddp", "fsdp full"):
        assert alone[way].optimizer == pytest.approx(54 * GB, rel=0.01)  # 8 bytes x 6.7e9


@pytest.mark.slow("needs transformers")
def test_state_is_divided_by_the_ranks_that_shard_it(llama):
    alone, many = of(llama, 1, 1, "bf16"), of(llama, 64, 8, "bf16")
    whole = alone["ddp"]
    for way, parts in {
        "ddp": (1, 1, 1),
        "fsdp full": (64, 64, 64),
        "fsdp grad_op": (64, 64, 64),
        "fsdp hybrid": (8, 8, 8),
    }.items():
        found = many[way]
        divided = (found.weights, found.gradients, found.optimizer)
        wholes = (whole.weights, whole.gradients, whole.optimizer)
        for got, all_of_it, by in zip(divided, wholes, parts, strict=True):
            assert got == pytest.approx(all_of_it / by, rel=0.01)
    zero = alone["deepspeed zero 1"]
    assert many["deepspeed zero 1"].optimizer == zero.optimizer // 64
    assert many["deepspeed zero 1"].gradients == zero.gradients
    assert many["deepspeed zero 2"].gradients == zero.gradients // 64
    assert many["deepspeed zero 2"].weights == zero.weights
    norms = 65 * 4096 * 2  # each rank also has the full weights of the norms
    assert many["deepspeed zero 3"].weights == zero.weights // 64 + norms


@pytest.mark.slow("needs transformers")
def test_gathered_memory_is_the_root_two_blocks_and_a_gradient(llama):
    found = of(llama, 8, 8, "bf16")
    block = tensor_bytes(blocks_of(llama)["model.layers.0"].parameters())
    root = tensor_bytes(llama.parameters()) - 32 * block
    assert found["fsdp full"].passing == (root + 2 * block + max(root, block)) // 2
    assert found["fsdp grad_op"].passing == (adamw(llama).weights + max(root, block)) // 2
    assert of(llama, 1, 1, "bf16")["fsdp full"].passing == 0


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_shard_size_of_rank_0_matches_torch_chunk(ranks):
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3), nn.LayerNorm(3))
    held = sum(each.chunk(ranks)[0].numel() * 4 for each in model.parameters())
    assert sharded_bytes(model.parameters(), ranks) == held


def test_zero_3_counts_full_small_parameters_beside_their_shards():
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(500, 500, bias=False))
    how = {"blocks": [], "ranks": 2, "local": 2, "precision": "fp32"}
    found = {each.strategy: each for each in estimate_rank_memory(model, adamw(model), **how)}
    size = tensor_bytes(model.parameters())
    assert found["deepspeed zero 3"].weights == size // 2 + 4 * (6 * 5 + 5)


def test_unknown_memory_is_not_counted_as_zero():
    model = nn.Linear(4, 4)
    takes = StepMemory(1, 80, 0, 0, None, 0)
    how = {"blocks": [], "ranks": 2, "local": 2, "precision": "fp32"}
    assert all(each.optimizer is None for each in estimate_rank_memory(model, takes, **how))
