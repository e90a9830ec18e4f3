"""A small GPT on the source of Python's own standard library, character by character."""

import math
import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import surestep

# Newline, and the printable characters from space to tilde; anything else is read as "?".
ALPHABET = "\n" + "".join(map(chr, range(32, 127)))

config = surestep.Config(
    max_steps=800,
    batch_size=32,
    precision="bf16",
    optim=surestep.Optim(name="adamw", lr=3e-3),
    schedule=surestep.Schedule(name="cosine", warmup="5%", min_lr_ratio=0.05),
    validation=surestep.Validation(every="200 steps", metric="bits_per_char", mode="min"),
    checkpoint=surestep.Checkpoint(every="200 steps"),
    logging=surestep.Logging(every="20 steps"),
)


def source_files() -> list[Path]:
    """List the modules of the standard library, without packages' folders and tests."""
    return sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))


def encode(text: str) -> Tensor:
    """Return the characters as indices into the alphabet, (characters,)."""
    known = {character: index for index, character in enumerate(ALPHABET)}
    return torch.tensor([known.get(character, known["?"]) for character in text])


def decode(tokens: list[int]) -> str:
    """Return the text of indices into the alphabet."""
    return "".join(ALPHABET[token] for token in tokens)


def windows(files: list[Path], length: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets (windows, length): a target is the character that follows."""
    text = "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in files)
    tokens = encode(text.replace("\t", "    "))
    count = (len(tokens) - 1) // length
    return tokens[: count * length].view(count, length), tokens[1 : count * length + 1].view(
        count, length
    )


class Block(nn.Module):
    """Attention over what came before, and a perceptron; each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to the same shape."""
        batch, length, width = x.shape
        heads = self.query_key_value(self.norm_attention(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed: Tensor = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        added: Tensor = x + self.mlp(self.norm_mlp(x))
        return added


class GPT(nn.Module):
    """Predict the next character."""

    def __init__(self, width: int, layers: int, heads: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.character = nn.Embedding(len(ALPHABET), width)
        self.place = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(ALPHABET), bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map characters (batch, length) to logits (batch, length, alphabet)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.blocks(self.character(tokens) + self.place(places))
        logits: Tensor = self.head(self.norm(x))
        return logits


def nats(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy over the characters, in nats."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def bits_per_char(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the same in bits."""
    return nats(logits, targets) / math.log(2)


@torch.no_grad()
def sample(model: GPT, prompt: str, characters: int) -> str:
    """Let the model write on from the prompt."""
    device = next(model.parameters()).device
    tokens = encode(prompt).tolist()
    generator = torch.Generator().manual_seed(0)
    for _ in range(characters):
        seen = torch.tensor(tokens[-model.length :], device=device).unsqueeze(0)
        share = functional.softmax(model(seen)[0, -1].float().cpu() / 0.8, dim=0)
        tokens.append(int(torch.multinomial(share, 1, generator=generator)))
    return decode(tokens)


class PrintSample(surestep.Callback):
    """Print what the model writes when it is done."""

    def on_end(self, state: surestep.State) -> None:
        """Print a sample to stdout."""
        if isinstance(state.model, GPT):
            print(sample(state.model, "def ", 400))


callbacks = [PrintSample()]


def task(width: int = 160, layers: int = 3, heads: int = 4, length: int = 128) -> surestep.Task:
    """Predict the next character of Python source.

    Args:
        width: size of the vector of each character.
        layers: attention blocks.
        heads: attention heads of a block.
        length: characters seen at once.
    """
    files = source_files()
    return surestep.Task(
        model=lambda: GPT(width, layers, heads, length),
        loss=nats,
        items="tokens",
        train=windows([file for i, file in enumerate(files) if i % 20 > 1], length),
        val=windows(files[0::20], length),
        test=windows(files[1::20], length),
        metrics={"bits_per_char": bits_per_char},
    )
