import pytest
import torch
from torch import nn

from surestep.base.errors import TaskError
from surestep.engine.evaluate.evaluate import eval_mode
from surestep.engine.evaluate.predict import dropout_modules, mean_and_std


def encoder(dropout):
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (nn.Dropout(0.5), torch.ones(4, 8)),
        (nn.Dropout2d(0.5), torch.ones(4, 3, 2, 2)),
        (nn.AlphaDropout(0.5), torch.ones(4, 8)),
        (nn.LSTM(8, 8, num_layers=2, dropout=0.5, batch_first=True), torch.ones(4, 3, 8)),
        (encoder(0.5), torch.ones(4, 3, 8)),
        (nn.TransformerEncoder(encoder(0.5), 2), torch.ones(4, 3, 8)),
    ],
    ids=lambda each: type(each).__name__,
)
@torch.inference_mode()
def test_dropout_modules_drop_while_the_model_is_in_eval_mode(model, inputs):
    with eval_mode(model):
        for module in dropout_modules(model):
            module.training = True
        said = [model(inputs) for _ in range(2)]
    first, second = (each[0] if isinstance(each, tuple) else each for each in said)
    assert (first != second).any()


def test_attention_with_dropout_is_a_dropout_module():
    attention = nn.MultiheadAttention(8, 2, dropout=0.5)
    assert dropout_modules(attention) == [attention]


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)),
        nn.Dropout(0.0),
        encoder(0.0),
        nn.LSTM(8, 8, num_layers=2),
    ],
)
def test_model_with_dropout_rate_zero_or_none_is_rejected(model):
    with pytest.raises(TaskError, match=f"^{type(model).__name__} has no dropout"):
        dropout_modules(model)


def test_mean_and_std_are_those_of_all_passes():
    passes = torch.randn(9, 5, 3) * 1e-3 + 1e4
    mean, spread = mean_and_std(lambda number: {"a": passes[number - 1]}, 9)
    torch.testing.assert_close(mean["a"], passes.double().mean(0).float())
    torch.testing.assert_close(spread["a"], passes.double().std(0).float())
