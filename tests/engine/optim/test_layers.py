import pytest
import torch
from torch import nn

from surestep.engine.model.layers import layers_of
from tests.needs import needs


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.attention = nn.MultiheadAttention(4, 1)
        self.mlp = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))


class Gpt(nn.Module):
    def __init__(self, tied=False):
        super().__init__()
        self.token = nn.Embedding(5, 4)
        self.position = nn.Parameter(torch.zeros(4))
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 5, bias=False)
        if tied:
            self.head.weight = self.token.weight


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)
        self.conv2, self.bn2 = nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2)
        self.fc1, self.fc2 = nn.Linear(2, 2), nn.Linear(2, 2)


class Wrapper(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Cnn()


class Vgg(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 3))
        self.classifier = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))


def linear():
    return nn.Linear(4, 4)


def stack(count=2):
    return nn.Sequential(*[Block() for _ in range(count)])


GPT = ["(itself) token", "blocks.0", "blocks.1", "norm head"]
CNN = ["conv1 bn1", "conv2 bn2", "fc1", "fc2"]
MODELS = {
    "one": (linear, ["(itself)"]),
    "mlp": (lambda: nn.Sequential(linear(), nn.ReLU(), linear(), nn.ReLU(), linear()), list("024")),
    "cnn": (
        lambda: nn.Sequential(
            *[nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 2, 3)],
            *[nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 2)],
        ),
        ["0 1", "3 4", "6"],
    ),
    "norm first": (lambda: nn.Sequential(nn.LayerNorm(4), linear(), linear()), ["0 1", "2"]),
    "blocks of leaves": (
        lambda: nn.Sequential(nn.Sequential(linear(), nn.LayerNorm(4)), linear()),
        ["0", "1"],
    ),
    "blocks and leaves": (
        lambda: nn.Sequential(linear(), stack(1), linear(), nn.LayerNorm(4), linear()),
        ["0", "1.0", "2 3", "4"],
    ),
    "head of leaves": (
        lambda: nn.ModuleDict(
            {"body": stack(), "head": nn.Sequential(linear(), nn.Tanh(), linear())}
        ),
        ["body.0", "body.1", "head.0 head.2"],
    ),
    "gpt": (Gpt, GPT),
    "tied": (lambda: Gpt(tied=True), ["(itself) token", "blocks.0", "blocks.1", "norm"]),
    "cnn class": (Cnn, CNN),
    "wrapper": (Wrapper, [" ".join(f"net.{part}" for part in each.split()) for each in CNN]),
    "vgg": (Vgg, ["features.0 features.1", "features.2", "classifier.0", "classifier.2"]),
    "stages": (
        lambda: nn.Sequential(linear(), stack(), stack(1), nn.LayerNorm(4), linear()),
        ["0", "1.0", "1.1", "2.0", "3 4"],
    ),
    "backbone": (
        lambda: nn.Sequential(Gpt(), linear()),
        ["0 0.token", "0.blocks.0", "0.blocks.1", "0.norm 0.head", "1"],
    ),
    "two backbones": (lambda: nn.Sequential(Gpt(), Gpt(), linear()), list("012")),
    "pairs": (
        lambda: nn.ModuleList([nn.ModuleList([Block(), stack(1)]), nn.ModuleList([Block()])]),
        ["0", "1.0"],
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_blocks_are_layers_in_module_order(name):
    make, expected = MODELS[name]
    model = make()
    found = layers_of(model)
    assert [" ".join(layer.modules) for layer in found] == expected
    assert [layer.index for layer in found] == list(range(1, len(expected) + 1))
    held = [id(each) for layer in found for each in layer.parameters]
    assert sorted(held) == sorted(id(each) for each in model.parameters())


SMALL = {
    **{"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2},
    "intermediate_size": 8,
}


def transformers_models():
    transformers = needs("transformers")
    bert = transformers.BertConfig(vocab_size=11, **SMALL)
    gpt2 = transformers.GPT2Config(
        **{"vocab_size": 11, "n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2},
        **{"bos_token_id": 0, "eos_token_id": 0},
    )
    vit = transformers.ViTConfig(image_size=8, patch_size=4, num_channels=1, **SMALL)
    return {
        "bert": transformers.BertForSequenceClassification(bert),
        "gpt2": transformers.GPT2LMHeadModel(gpt2),
        "vit": transformers.ViTForImageClassification(vit),
    }


@pytest.mark.slow("needs transformers")
def test_transformers_models_have_an_embedding_blocks_and_a_head():
    found = {
        name: [" ".join(layer.modules) for layer in layers_of(model)]
        for name, model in transformers_models().items()
    }
    assert found["bert"] == [
        *("bert.embeddings", "bert.encoder.layer.0", "bert.encoder.layer.1"),
        *("bert.pooler", "classifier"),
    ]
    # Its head is tied to the token embedding and belongs to that layer.
    assert found["gpt2"] == [
        "transformer.wte transformer.wpe",
        *("transformer.h.0", "transformer.h.1", "transformer.ln_f"),
    ]
    assert len(found["vit"]) == 4
    assert found["vit"][0] == "vit.embeddings"
    assert found["vit"][-1] == "vit.layernorm classifier"
