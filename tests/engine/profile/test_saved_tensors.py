"""What the graph of a loss stores, compared with what torch's hooks record."""

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from surestep.engine import private
from surestep.engine.profile.saved_tensors import GraphCounter, StorageCounter, StoredInHooksError


@pytest.fixture(params=["data", "no data"], autouse=True)
def release(request, monkeypatch):
    """Also a release of torch that only returns what is stored as the backward reads it."""
    if request.param == "no data":
        monkeypatch.setattr(private, "saved_tensor_data", None)
    return request.param


class Block(nn.Module):
    """Attention, a residual and a layer without parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(8), nn.Linear(8, 24, bias=False)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norm(x)).chunk(3, dim=-1)
        x = x + nn.functional.scaled_dot_product_attention(query, key, value)
        return x + self.mlp(x)


class Square(torch.autograd.Function):
    """Stores its input as an attribute, not by save_for_backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * ctx.x * grad


def sequences() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(Block(), Block(), nn.Linear(8, 5)), torch.randn(3, 6, 8)


def images() -> tuple[nn.Module, Tensor]:
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(36, 5)), torch.randn(2, 1, 8, 8)


def count_by_module(model: nn.Module, x: Tensor, loss: Tensor) -> dict[str, int]:
    counter = StorageCounter(x.device)
    counter.add([*model.parameters(), *model.buffers(), x])
    return dict(GraphCounter(counter, model.named_parameters()).add([loss]))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("make", [sequences, images])
def test_graph_stores_what_the_hooks_of_torch_record(make, precision):
    model, x = make()
    state, recorded = torch.get_rng_state(), {}
    known = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers(), x)}

    def record(tensor: Tensor) -> Tensor:
        recorded[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def run() -> Tensor:
        torch.set_rng_state(state)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            return model(x).float().logsumexp(-1).sum()

    with saved_tensors_hooks(record, lambda tensor: tensor):
        run()
    expected = sum(t.untyped_storage().nbytes() for at, t in recorded.items() if at not in known)
    recorded.clear()
    assert sum(count_by_module(model, x, run()).values()) == expected > 0


def test_operation_without_parameters_counts_to_the_module_before_it():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    x = torch.randn(10, 8)
    assert count_by_module(model, x, model(x).exp().sum()) == {"0": 4 * 160, "2": 4 * 40}


def test_checkpointed_block_stores_its_inputs_and_is_not_recomputed():
    model, x = sequences()
    calls = []
    model[1].register_forward_pre_hook(lambda *_: calls.append(1))
    hidden = checkpoint(model[0], x.requires_grad_(), use_reentrant=False)
    loss = checkpoint(model[1], hidden, use_reentrant=False).sum()
    if private.saved_tensor_data is None:
        with pytest.raises(StoredInHooksError, match="does not show what hooks store"):
            count_by_module(model, x, loss)
    else:
        assert count_by_module(model, x, loss) == {"1.norm": hidden.nbytes}
        assert len(calls) == 1


def test_graph_whose_backward_ran_stores_nothing():
    model, x = sequences()
    loss = model(x).sum()
    loss.backward()
    assert count_by_module(model, x, loss) == {}


def test_attributes_of_a_custom_function_count():
    model, x = nn.Linear(8, 4), torch.randn(10, 8)
    assert count_by_module(model, x, Square.apply(model(x)).sum()) == {"(itself)": 4 * 40}


def test_storage_counts_once():
    counter, x = StorageCounter(torch.device("cpu")), torch.zeros(10)
    assert counter.add([x, x[:2], x.numpy(), x.numpy()[3:]]) == 40
    assert counter.add([x]) == 0
    assert StorageCounter(torch.device("cuda")).add([x, x.numpy()]) == 0
    assert counter.add([torch.eye(3).to_sparse()]) == 0
