"""A recipe: four small models of Hugging Face's transformers, with random weights.

`surestep train benchmarks/small_transformers.py --task.model bert` trains one. GPT-2 predicts the
next character of a function of Python's standard library, BERT those that are masked, T5 the name
of a function from its source, ViT the digit of an image of scikit-learn.
"""

import importlib
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import surestep
from surestep.recipes.chars import source_files
from surestep.recipes.digits import images
from surestep.recipes.hf import END, PADDING, WORDS, batch, functions

transformers: Any = importlib.import_module("transformers")  # the types of its configs are wrong
MASK, VOCABULARY = WORDS, WORDS + 1
WIDTH, LAYERS, HEADS, LENGTH = 64, 2, 4, 160

config = surestep.Config(
    max_steps=300,
    batch_size=32,
    optim=surestep.Optim(name="adamw", lr=1e-3),
    schedule=surestep.Schedule(name="cosine", warmup="5%"),
    validation=surestep.Validation(every="300 steps"),
)

SIZES = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
ENDS = {"bos_token_id": None, "eos_token_id": END, "pad_token_id": END}


def gpt2() -> Any:
    """Return a GPT-2."""
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=LENGTH,
            n_embd=WIDTH,
            n_layer=LAYERS,
            n_head=HEADS,
            use_cache=False,
            **ENDS,
        )
    )


def bert() -> Any:
    """Return a BERT that predicts masked characters."""
    sizes = {**SIZES, "intermediate_size": 4 * WIDTH, "max_position_embeddings": LENGTH}
    return transformers.BertForMaskedLM(
        transformers.BertConfig(vocab_size=VOCABULARY, **sizes, **ENDS)
    )


def t5() -> Any:
    """Return a T5: LAYERS blocks in the encoder, and as many in the decoder."""
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        d_kv=WIDTH // HEADS,
        d_ff=4 * WIDTH,
        num_layers=LAYERS,
        num_heads=HEADS,
        use_cache=False,
        decoder_start_token_id=END,
        eos_token_id=END,
        pad_token_id=END,
    )
    return transformers.T5ForConditionalGeneration(config)


def vit() -> Any:
    """Return a ViT for images of 8 x 8 pixels and ten classes."""
    sizes = {**SIZES, "intermediate_size": 4 * WIDTH, "image_size": 8, "patch_size": 2}
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(num_channels=1, num_labels=10, **sizes)
    )


def masked(samples: list[Tensor]) -> dict[str, Tensor]:
    """Mask 15% of the characters, which the label of the others leaves out."""
    inputs = batch(samples)
    hidden = (torch.rand(inputs["labels"].shape) < 0.15) & inputs["attention_mask"].bool()
    inputs["labels"] = inputs["labels"].where(hidden, PADDING)
    inputs["input_ids"] = inputs["input_ids"].masked_fill(hidden, MASK)
    return inputs


def named(samples: list[Tensor]) -> dict[str, Tensor]:
    """Replace the first name that is defined by MASK, and make it the label."""
    sources, names = [], []
    for sample in samples:
        text = bytes(sample[:-1].tolist()).decode()
        found = re.search(r"\bdef (\w+)", text)
        name = found[1] if found else ""
        at = found.start(1) if found else 0
        sources.append(torch.cat([sample[:at], torch.tensor([MASK]), sample[at + len(name) :]]))
        names.append(torch.tensor([*name.encode(), END]))
    labels = pad_sequence(names, batch_first=True, padding_value=PADDING)
    return {**batch(sources), "labels": labels}


def classified(samples: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    pixels, labels = zip(*samples, strict=True)
    return {"pixel_values": torch.stack(pixels), "labels": torch.stack(labels)}


MODELS = {"gpt2": (gpt2, batch), "bert": (bert, masked), "t5": (t5, named)}


def task(model: str = "gpt2") -> surestep.Task:
    """Train a model on functions, or ViT on images.

    Args:
        model: gpt2, bert, t5 or vit.
    """
    if model == "vit":
        samples = list(zip(*images(), strict=True))
        return surestep.Task(
            vit(), loss="model", train=samples[:1400], val=samples[1400:], collate_fn=classified
        )
    build, collate = MODELS[model]
    files = source_files()
    return surestep.Task(
        build(),
        loss="model",
        train=functions([file for i, file in enumerate(files) if i % 20], LENGTH),
        val=functions(files[0::20], LENGTH)[:500],
        collate_fn=collate,
    )
