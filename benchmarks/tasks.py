"""The tasks that every contestant trains: a model, its data and its loss.

All data is in memory and can be learned, so the final loss shows whether a contestant did the work:
classes of a spiral, noisy copies of ten images, sequences of tokens from a sparse graph.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Task:
    """A model and its data; `build` returns the same weights each time."""

    name: str
    title: str
    build: Callable[[], nn.Module]
    loss: Loss
    items: str  # what the loss is a mean over: "samples" or "tokens"
    inputs: Tensor
    targets: Tensor
    batch_size: int
    steps: int  # timed steps of one round; a few seconds
    # A different order of the data changes the final loss by up to 5%; different work, by more.
    loss_tolerance: float = 0.1
    device: str = "cpu"
    precision: str = "fp32"  # or bf16

    def place(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return a batch on the device."""
        if self.device == "cpu":
            return inputs, targets
        return inputs.to(self.device, non_blocking=True), targets.to(self.device, non_blocking=True)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of a forward pass."""
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device, torch.bfloat16)


def spiral(rows: int) -> tuple[Tensor, Tensor]:
    """Draw points (rows, 2) on three intertwined arms, and the arm of each point."""
    generator = torch.Generator().manual_seed(1)
    arm = torch.randint(3, (rows,), generator=generator)
    radius = torch.rand(rows, generator=generator)
    noise = 0.2 * torch.randn(rows, generator=generator)
    angle = 4.0 * radius + arm * (2.0 * torch.pi / 3.0) + noise
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), arm


def pictures(rows: int, size: int = 16) -> tuple[Tensor, Tensor]:
    """Draw noisy copies (rows, 3, size, size) of ten random pictures, and which one each shows."""
    generator = torch.Generator().manual_seed(2)
    templates = torch.randn(10, 3, size, size, generator=generator)
    label = torch.randint(10, (rows,), generator=generator)
    noise = torch.randn(rows, 3, size, size, generator=generator)
    return templates[label] + 2.0 * noise, label


def sequences(rows: int, tokens: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Return paths through a graph with four edges per token, (rows, tokens), and next tokens."""
    generator = torch.Generator().manual_seed(3)
    edges = torch.randint(vocabulary, (vocabulary, 4), generator=generator)
    path = [torch.randint(vocabulary, (rows,), generator=generator)]
    for _ in range(tokens):
        path.append(edges[path[-1], torch.randint(4, (rows,), generator=generator)])
    sequence = torch.stack(path, dim=1)
    return sequence[:, :-1].contiguous(), sequence[:, 1:].contiguous()


class Block(nn.Module):
    """A pre-norm transformer block with causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, tokens, 3, self.heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        out: Tensor = x + self.mlp(self.mlp_norm(x))
        return out


class GPT(nn.Module):
    """A decoder that returns the logits (batch, tokens, vocabulary) of each next token."""

    def __init__(self, vocabulary: int, tokens: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(0.02 * torch.randn(tokens, width))
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.blocks(self.token(tokens) + self.position)
        logits: Tensor = self.head(self.norm(x))
        return logits


def build_mlp() -> nn.Module:
    """Build the MLP 2-128-128-3."""
    torch.manual_seed(0)
    hidden = [nn.Linear(2, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(128, 3))


def build_conv(*widths: int) -> nn.Module:
    """Build 3x3 convolutions with batch norm on 16x16 pictures, each halving them."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for channels, features in pairwise((3, *widths)):
        convolution = nn.Conv2d(channels, features, kernel_size=3, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(features), nn.ReLU(), nn.MaxPool2d(2)]
    side = 16 >> len(widths)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(widths[-1] * side * side, 10))


class Residual(nn.Module):
    """Two 3x3 convolutions and the sum with their input."""

    def __init__(self, channels: int, features: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, features, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(features)
        self.conv2 = nn.Conv2d(features, features, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(features)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != features:
            convolution = nn.Conv2d(channels, features, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(features))

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


def build_resnet() -> nn.Module:
    """Build a ResNet-18 for 32x32 pictures: a 3x3 stem without pooling, 64 to 512 channels."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64)]
    layers.append(nn.ReLU())
    channels = 64
    for features in (64, 128, 256, 512):
        for stride in (1 if features == channels else 2, 1):
            layers.append(Residual(channels, features, stride))
            channels = features
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def build_gpt(width: int) -> nn.Module:
    """Build a GPT of 4 layers and 4 heads, for 64 tokens out of 96."""
    torch.manual_seed(0)
    return GPT(vocabulary=96, tokens=64, width=width, heads=4, layers=4)


def token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the mean cross-entropy over all tokens of the batch."""
    return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def make_mlp() -> Task:
    title = "MLP 2-128-128-3, batch 64"
    loss = nn.CrossEntropyLoss()
    return Task("mlp", title, build_mlp, loss, "samples", *spiral(8192), 64, steps=1045)


def make_conv() -> Task:
    title = "Conv net 8-16-32 on 16x16, batch 64"
    build, loss = partial(build_conv, 8, 16, 32), nn.CrossEntropyLoss()
    return Task("conv", title, build, loss, "samples", *pictures(4096), 64, steps=245)


def make_wide_conv() -> Task:
    title = "Conv net 32-64 on 16x16, batch 64"
    build, loss = partial(build_conv, 32, 64), nn.CrossEntropyLoss()
    return Task("wide_conv", title, build, loss, "samples", *pictures(1024), 64, steps=195)


def make_resnet() -> Task:
    title = "ResNet-18 on 32x32, batch 32"
    rows = pictures(1024, size=32)
    return Task(
        "resnet",
        title,
        build_resnet,
        nn.CrossEntropyLoss(),
        "samples",
        *rows,
        32,
        steps=15,
        loss_tolerance=1.0,  # 1.4 to 2.9 after 21 steps: BatchNorm's averages still move
    )


def make_gpt() -> Task:
    title = "GPT, 4 layers of width 128, 64 tokens, batch 16"
    build, rows = partial(build_gpt, 128), sequences(1024, tokens=64, vocabulary=96)
    return Task("gpt", title, build, token_loss, "tokens", *rows, 16, steps=45)


def make_wide_gpt() -> Task:
    title = "GPT, 4 layers of width 256, 64 tokens, batch 16"
    build, rows = partial(build_gpt, 256), sequences(1024, tokens=64, vocabulary=96)
    return Task("wide_gpt", title, build, token_loss, "tokens", *rows, 16, steps=45)


TASKS = {
    "mlp": make_mlp,
    "conv": make_conv,
    "wide_conv": make_wide_conv,
    "resnet": make_resnet,
    "gpt": make_gpt,
    "wide_gpt": make_wide_gpt,
}
