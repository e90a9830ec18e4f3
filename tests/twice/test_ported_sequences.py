"""Language, speech and recurrent models as people write them: padded, masked, tied, stateful."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import rnn

import surestep
from tests.twice.compare import assert_same, plain_config, prepare, seed_of, weights

GENERATOR = torch.Generator().manual_seed(6)
LENGTHS = torch.randint(2, 9, (23,), generator=GENERATOR).tolist()
SOURCES = [torch.randint(3, 13, (n,), generator=GENERATOR) for n in LENGTHS]
TARGETS = [torch.cat([torch.tensor([1]), source.flip(0), torch.tensor([2])]) for source in SOURCES]
NOT_SET = surestep.NOT_SET


def parts_of(size: int, count: int) -> list[range]:
    """Return the indices of the batches of an epoch."""
    return [range(first, min(first + size, count)) for first in range(0, count, size)]


class Translator(nn.Module):
    """A GRU encoder of packed sequences, a decoder that attends to it, and tied embeddings."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(13, 6, padding_idx=0)
        self.encoder = nn.GRU(6, 6, batch_first=True)
        self.decoder = nn.GRU(6, 6, batch_first=True)
        self.out = nn.Linear(6, 13)
        self.out.weight = self.table.weight
        self.double()

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        packed = rnn.pack_padded_sequence(
            self.table(source), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        states, last = self.encoder(packed)
        memory, _ = rnn.pad_packed_sequence(states, batch_first=True, total_length=source.shape[1])
        hidden, _ = self.decoder(self.table(target), last)
        scores = hidden @ memory.transpose(1, 2)
        scores = scores.masked_fill((source == 0)[:, None], -math.inf)
        return self.out(hidden + scores.softmax(2) @ memory)


def collate_pairs(samples: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Pad sources and targets to the longest of the batch."""
    sources, targets = zip(*samples, strict=True)
    padded = rnn.pad_sequence(list(targets), batch_first=True)
    return {
        "source": rnn.pad_sequence(list(sources), batch_first=True),
        "lengths": torch.tensor([len(source) for source in sources]),
        "target": padded[:, :-1],
        "labels": padded[:, 1:].masked_fill(padded[:, 1:] == 0, -100),
    }


def split_labels(batch: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
    """Return what the translator takes, and the labels."""
    return {name: batch[name] for name in ("source", "lengths", "target")}, batch["labels"]


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean over tokens that are not padding."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)


def test_translator_of_packed_sequences_with_padding_that_is_not_counted() -> None:
    pairs = list(zip(SOURCES, TARGETS, strict=True))
    train, val = pairs[:17], pairs[17:]
    net = Translator()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02, betas=(0.9, 0.98), eps=1e-9)
    losses, validated = [], []
    for _ in range(2):
        net.train()
        for part in parts_of(5, 17):
            inputs, labels = split_labels(collate_pairs([train[i] for i in part]))
            optimizer.zero_grad()
            loss = token_loss(net(**inputs), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            losses.append(loss.item())
        net.eval()
        with torch.no_grad():
            inputs, labels = split_labels(collate_pairs(val))
            logits = net(**inputs)
        found = (logits.argmax(2) == labels)[labels != -100].double().mean().item()
        validated.append([token_loss(logits, labels).item(), found])

    ours_net = Translator()
    task = surestep.Task(
        ours_net,
        token_loss,
        items="tokens",
        train=train,
        val=val,
        collate_fn=collate_pairs,
        inputs=split_labels,
        metrics={"right": lambda logits, y: (logits.argmax(2) == y)[y != -100].double().mean()},
    )
    adam = {"name": "adam", "betas": (0.9, 0.98), "eps": 1e-9, "momentum": NOT_SET, "lr": 0.02}
    config = plain_config(
        epochs=2,
        batch_size=5,
        micro_batch_size=2,
        max_grad_norm=0.5,
        optim=adam,
        validation={"batch_size": 4},
    )
    session = prepare(task, config)
    ours, evaluated = [], []
    for result in session.steps():
        ours.append(float(result.loss))
        if result.step % 4 == 0:
            metrics = session.evaluate()
            evaluated.append([metrics["val/loss"], metrics["val/right"]])

    assert_same([losses, validated, weights(net)], [ours, evaluated, weights(ours_net)])


class Decoder(nn.Module):
    """A language model of one causal layer, with the weights of its table in its head."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.places = nn.Embedding(13, 8), nn.Embedding(7, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 11, 0.2, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8), enable_nested_tensor=False)
        self.head = nn.Linear(8, 13, bias=False)
        self.head.weight = self.table.weight
        self.double()
        mask = torch.full((7, 7), -math.inf, dtype=torch.float64).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        n = tokens.shape[1]
        x = self.table(tokens) + self.places(torch.arange(n, device=tokens.device))
        return self.head(self.body(x, mask=self.mask[:n, :n], is_causal=True))


def warm_then_decay(step: int) -> float:
    """Return the factor of a transformer's rate."""
    return min((step + 1) ** -0.5, (step + 1) * 3**-1.5)


class Blocks(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Windows of a text, and the tokens that follow."""

    text = torch.randint(0, 13, (131,), generator=torch.Generator().manual_seed(7))

    def __len__(self) -> int:
        return (len(self.text) - 1) // 7

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        at = 7 * index
        return self.text[at : at + 7], self.text[at + 1 : at + 8]


def test_language_model_with_tied_weights_dropout_and_decay_of_matrices() -> None:
    data, net = Blocks(), Decoder()
    matrices = [p for p in net.parameters() if p.dim() > 1]
    others = [p for p in net.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=0.01,
        betas=(0.9, 0.95),
        eps=1e-3,  # the gradient of a bias of keys is 0 but for rounding
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warm_then_decay)
    losses, step = [], 0
    for epoch in range(2):
        made = torch.Generator().manual_seed(seed_of("order", 0, epoch))
        order = torch.randperm(len(data), generator=made)
        for first, part in zip(range(0, 18, 5), order.split(5), strict=True):
            x, y = (
                torch.stack(each) for each in zip(*(data[i] for i in part.tolist()), strict=True)
            )
            torch.manual_seed(seed_of("model", 0, step, first))
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x).transpose(1, 2), y)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
            step += 1
    net.eval()
    with torch.no_grad():
        x, y = (torch.stack(each) for each in zip(*(data[i] for i in range(11)), strict=True))
        validated = F.cross_entropy(net(x).transpose(1, 2), y).item()

    ours_net = Decoder()
    task = surestep.Task(
        ours_net,
        surestep.losses.next_token(targets="shifted"),
        train=data,
        val=torch.utils.data.Subset(data, range(11)),
        schedule=lambda taken, total: warm_then_decay(taken),
        metrics={
            "perplexity": surestep.whole_set(
                lambda logits, y: F.cross_entropy(logits.flatten(0, 1), y.flatten()).exp()
            )
        },
    )
    config = surestep.Config(
        epochs=2,
        batch_size=5,
        max_grad_norm=1.0,
        logging={"progress": "quiet"},
        optim={
            "name": "adamw",
            "lr": 0.01,
            "betas": (0.9, 0.95),
            "eps": 1e-3,
            "weight_decay": 0.1,
            "groups": ["table decay=0.1", "places decay=0.1"],
        },
        validation={"batch_size": 4},
    )
    session = prepare(task, config)
    ours = [float(result.loss) for result in session.steps()]
    found = session.evaluate()

    assert_same([losses, weights(net)], [ours, weights(ours_net)])
    assert_same([validated, math.exp(validated)], [found["val/loss"], found["val/perplexity"]])


def mask_tokens(samples: list[Tensor]) -> dict[str, Tensor]:
    """Mask tokens of a batch at random, as BERT's collator does."""
    tokens = rnn.pad_sequence(samples, batch_first=True)
    chosen = (torch.rand(tokens.shape) < 0.3) & (tokens != 0)
    labels = tokens.masked_fill(~chosen, -100)
    replaced = chosen & (torch.rand(tokens.shape) < 0.8)
    other = torch.randint(3, 13, tokens.shape)
    changed = torch.where(chosen & ~replaced, other, tokens.masked_fill(replaced, 1))
    return {"tokens": changed, "padding": tokens == 0, "labels": labels}


class Masked(nn.Module):
    """A bidirectional encoder with a padding mask; it computes its own loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(13, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 11, 0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(8, 13)
        self.double()

    def forward(self, tokens: Tensor, padding: Tensor) -> Tensor:
        return self.head(self.body(self.table(tokens), src_key_padding_mask=padding))


def test_masked_model_whose_masks_are_drawn_while_batches_are_collated() -> None:
    train, val = SOURCES[:17], SOURCES[17:]
    net = Masked()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses, validated = [], []
    for epoch in range(2):
        net.train()
        made = torch.Generator().manual_seed(seed_of("order", 0, epoch))
        order = torch.randperm(17, generator=made)
        for first, part in zip(range(0, 17, 4), order.split(4), strict=True):
            torch.manual_seed(seed_of("load", 0, epoch, first, "train"))
            batch = mask_tokens([train[i] for i in part])
            labels = batch.pop("labels")
            if not (labels != -100).any():
                continue
            optimizer.zero_grad()
            loss = F.cross_entropy(net(**batch).transpose(1, 2), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        net.eval()
        total = count = 0.0
        for first in range(0, 6, 4):
            torch.manual_seed(seed_of("load", 0, 0, first, "val"))
            batch = mask_tokens(val[first : first + 4])
            labels = batch.pop("labels")
            with torch.no_grad():
                logits = net(**batch).transpose(1, 2)
            total += F.cross_entropy(logits, labels, reduction="sum").item()
            count += int((labels != -100).sum())
        validated.append(total / count)

    ours_net = Masked()
    task = surestep.Task(
        ours_net,
        surestep.losses.masked_tokens(),
        train=train,
        val=val,
        collate_fn=mask_tokens,
        inputs=lambda batch: ({k: batch[k] for k in ("tokens", "padding")}, batch["labels"]),
    )
    config = plain_config(
        epochs=2, batch_size=4, data={"shuffle": True}, validation={"batch_size": 4}
    )
    seen: list[float] = []

    class See(surestep.Callback):
        def on_evaluate(self, state: Any, metrics: dict[str, float]) -> None:
            seen.append(metrics["val/loss"])

    run = surestep.Trainer(task, config, run="runs/masked", callbacks=[See()]).fit()
    ours = [loss for event in run.events() if (loss := event.get("loss")) is not None]

    assert_same([validated, weights(net)], [seen, weights(ours_net)])
    if ours and isinstance(ours[0], float):
        assert_same(losses, ours)


class Speech(nn.Module):
    """Frames that are halved in time by a convolution, then read in both directions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.halve = nn.Conv1d(3, 6, 3, stride=2, padding=1)
        self.cells = nn.LSTM(6, 5, bidirectional=True, batch_first=True)
        self.out = nn.Linear(10, 5)
        self.double()

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        x = self.halve(frames.transpose(1, 2)).relu().transpose(1, 2)
        packed = rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        hidden, _ = rnn.pad_packed_sequence(
            self.cells(packed)[0], batch_first=True, total_length=x.shape[1]
        )
        return self.out(hidden).log_softmax(2)


def collate_speech(samples: list[tuple[Tensor, Tensor]]) -> Any:
    """Pad frames, and join the labels of all samples into one row, as torch's example does."""
    frames, labels = zip(*samples, strict=True)
    lengths = torch.tensor([(len(each) + 1) // 2 for each in frames])
    label_lengths = torch.tensor([len(each) for each in labels])
    inputs = (rnn.pad_sequence(list(frames), batch_first=True), lengths)
    return inputs, (torch.cat(labels), lengths, label_lengths)


def ctc_of_joined(outputs: Tensor, targets: tuple[Tensor, ...]) -> Tensor:
    """Return torch's CTC of joined labels: a mean over samples."""
    labels, lengths, label_lengths = targets
    return F.ctc_loss(outputs.transpose(0, 1), labels, lengths, label_lengths)


def speech(count: int) -> list[tuple[Tensor, Tensor]]:
    """Return recordings of different lengths with 1 to 4 labels each."""
    g = torch.Generator().manual_seed(8)
    found = []
    for i in range(count):
        labels = torch.randint(1, 5, (1 + i % 4,), generator=g)
        found.append((torch.randn(16 + 3 * (i % 5), 3, generator=g, dtype=torch.float64), labels))
    return found


def test_speech_with_joined_labels_is_a_mean_over_recordings() -> None:
    data = speech(18)
    train, val = data[:11], data[11:]
    net = Speech()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    losses, validated = [], []
    for _ in range(2):
        for part in parts_of(5, 11):
            inputs, targets = collate_speech([train[i] for i in part])
            optimizer.zero_grad()
            loss = ctc_of_joined(net(*inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with torch.no_grad():
            inputs, targets = collate_speech(val)
            validated.append(ctc_of_joined(net(*inputs), targets).item())

    ours_net = Speech()
    task = surestep.Task(
        ours_net,
        ctc_of_joined,
        train=train,
        val=val,
        collate_fn=collate_speech,
        inputs=lambda batch: batch,
    )
    config = plain_config(
        epochs=2, batch_size=5, optim={"lr": 0.05, "momentum": 0.9}, validation={"batch_size": 4}
    )
    session = prepare(task, config)
    ours, evaluated = [], []
    for result in session.steps():
        ours.append(float(result.loss))
        if result.step % 3 == 0:
            evaluated.append(session.evaluate()["val/loss"])

    assert_same([losses, validated, weights(net)], [ours, evaluated, weights(ours_net)])


@pytest.mark.parametrize("micro", [5, 2])
def test_samples_are_in_the_second_dimension_if_time_comes_first(micro: int) -> None:
    series = torch.randn(24, 7, 3, generator=torch.Generator().manual_seed(9)).double()
    data = [(each, each.cumsum(0)[:, :2] * (1 + i)) for i, each in enumerate(series)]
    train, val = data[:13], data[13:]

    def collate(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        x, y = zip(*samples, strict=True)
        return torch.stack(x, 1), torch.stack(y, 1)

    class Series(nn.Module):
        """A GRU with time first, as torch's default is."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.cells, self.head = nn.GRU(3, 5), nn.Linear(5, 2)
            self.double()

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.cells(x)[0])

    def squared(outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs - y).square().mean()

    def absolute(outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs - y).abs().mean()

    net = Series()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    losses = []
    for part in parts_of(5, 13):
        x, y = collate([train[i] for i in part])
        optimizer.zero_grad()
        loss = squared(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        x, y = collate(val)
        plain = [squared(net(x), y).item(), absolute(net(x), y).item()]

    ours_net = Series()
    task = surestep.Task(
        ours_net,
        squared,
        train=train,
        val=val,
        collate_fn=collate,
        metrics={"mae": absolute},
    )
    config = plain_config(
        epochs=1,
        batch_size=5,
        micro_batch_size=micro,
        optim={"lr": 0.01},
        validation={"batch_size": 4},
    )
    session = prepare(task, config)
    ours = [float(result.loss) for result in session.steps()]
    found = session.evaluate()

    assert_same([losses, weights(net)], [ours, weights(ours_net)])
    assert_same(plain, [found["val/loss"], found["val/mae"]])
