"""Tiny Hugging Face models built from configs, each with unevenly ignored labels."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.laws.support.plain import order_of
from tests.needs import needs

transformers = needs("transformers")
SAMPLES, TOKENS, WORDS = 40, 9, 30
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
BERT: dict[str, Any] = {
    **SMALL,
    **{"vocab_size": WORDS, "intermediate_size": 16, "max_position_embeddings": TOKENS},
    **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
}


@dataclass(frozen=True)
class Case:
    """A model built from a config, and batches as a dict of tensors."""

    model: Callable[[], nn.Module]
    data: dict[str, Tensor]


def _built(kind: str, config: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        torch.manual_seed(1)
        return getattr(transformers, kind)(getattr(transformers, config)(**options))

    return build


def gpt2(dropout: float = 0.0) -> Callable[[], nn.Module]:
    drops = {f"{part}_pdrop": dropout for part in ("attn", "embd", "resid")}
    sizes = {"vocab_size": WORDS, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": TOKENS}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return _built("GPT2LMHeadModel", "GPT2Config", **sizes, **drops, **ends)


def llama() -> Callable[[], nn.Module]:
    sizes = {**SMALL, "vocab_size": WORDS, "intermediate_size": 16}
    return _built("LlamaForCausalLM", "LlamaConfig", **sizes)


def bert(kind: str, **options: Any) -> Callable[[], nn.Module]:
    return _built(kind, "BertConfig", **BERT, **options)


def t5() -> Callable[[], nn.Module]:
    sizes = {"vocab_size": WORDS, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1}
    more = {"num_heads": 2, "dropout_rate": 0.0, "decoder_start_token_id": 0}
    return _built("T5ForConditionalGeneration", "T5Config", **sizes, **more)


def vit() -> Callable[[], nn.Module]:
    picture = {"image_size": 8, "patch_size": 4, "num_channels": 1, "num_labels": 3}
    drops = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    sizes = {**SMALL, "intermediate_size": 16}
    return _built("ViTForImageClassification", "ViTConfig", **sizes, **picture, **drops)


def words(seed: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, WORDS, (SAMPLES, TOKENS), generator=generator)


def masked() -> dict[str, Tensor]:
    """Ignore labels after a length per row, and all labels of some rows of the first batch."""
    ids, generator = words(), torch.Generator().manual_seed(4)
    kept = torch.randint(1, TOKENS + 1, (SAMPLES, 1), generator=generator)
    labels = ids.masked_fill(torch.arange(TOKENS) >= kept, -100)
    labels[order_of(SAMPLES, 0, 0)[3:6]] = -100  # a micro-batch with only ignored labels
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def _labelled(labels: Tensor) -> dict[str, Tensor]:
    return {"input_ids": words(), "labels": labels}


def _numbers(*shape: int) -> Tensor:
    return torch.rand(SAMPLES, *shape, generator=torch.Generator().manual_seed(5))


def _ignoring(classes: int) -> Tensor:
    labels = torch.arange(SAMPLES) % classes
    return labels.masked_fill(torch.arange(SAMPLES) % 5 == 0, -100)


def _spans() -> dict[str, Tensor]:
    spans = {"start_positions": words(6)[:, 0] % TOKENS, "end_positions": words(7)[:, 0] % TOKENS}
    return {"input_ids": words(), **spans}


PICTURES = {"pixel_values": _numbers(1, 8, 8), "labels": torch.arange(SAMPLES) % 3}
CASES = {
    "causal, gpt2": Case(gpt2(), masked()),
    "causal, llama": Case(llama(), masked()),
    "masked, bert": Case(bert("BertForMaskedLM"), masked()),
    "tagger, bert": Case(bert("BertForTokenClassification", num_labels=WORDS), masked()),
    "classifier, bert": Case(
        bert("BertForSequenceClassification", num_labels=3), _labelled(_ignoring(3))
    ),
    "regression, bert": Case(
        bert("BertForSequenceClassification", num_labels=1), _labelled(_numbers(1))
    ),
    "several labels, bert": Case(
        bert("BertForSequenceClassification", num_labels=4), _labelled(_numbers(4).round())
    ),
    "spans, bert": Case(bert("BertForQuestionAnswering"), _spans()),
    "pictures, vit": Case(vit(), PICTURES),
    "encoder-decoder, t5": Case(t5(), masked()),
}
