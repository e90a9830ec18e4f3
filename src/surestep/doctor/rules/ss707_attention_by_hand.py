"""Attention is computed from a matrix of all weights.

`softmax(query @ key.T * scale) @ value` writes the weights of all pairs of tokens to memory, twice
or more, and keeps them for the backward pass: memory grows with the square of the length.
`scaled_dot_product_attention` computes the same without that matrix and is several times faster on
a GPU.

Ignore it if the sequences are short. Attention whose weights are returned, stored or changed before
they are used is not reported, nor is a fallback beside a fused form.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html

Wrong:

    import torch
    from torch import nn


    class Attention(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.qkv = nn.Linear(width, 3 * width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            query, key, value = self.qkv(x).chunk(3, dim=-1)
            weights = (query @ key.transpose(-2, -1) / query.size(-1) ** 0.5).softmax(dim=-1)
            return weights @ value


    with torch.inference_mode():
        print(Attention(8)(torch.randn(2, 5, 8)).shape)

Right:

    import torch
    from torch.nn.functional import scaled_dot_product_attention

    query, key, value = torch.randn(3, 2, 4, 5, 8)
    print(scaled_dot_product_attention(query, key, value, is_causal=True).shape)
"""

import re
from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_node
from surestep.doctor.source.trace import Program, Trace
from surestep.doctor.source.training import is_function, is_made_by, option_of, tensor_of
from surestep.doctor.source.values import Call, Operation, Value, walk

SEVERITY = "speed"
FIX = (
    "Use torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p)."
)
_HAS_FUSED = re.compile(r"scaled_dot_product|flash|xformers|memory_efficient|sdpa")
_HAS_SOFTMAX = re.compile("softmax", re.IGNORECASE)
_PRODUCTS = ("matmul", "bmm")
_TRANSPOSED = ("transpose", "permute", "swapaxes", "swapdims", "mT", "T")


def check(program: Program) -> Iterator[Problem]:
    """Find products of softmax weights with values, where the weights have no other use."""
    if program.contains(_HAS_FUSED) or not program.contains(_HAS_SOFTMAX):
        return
    for trace in program.traces:
        reported: set[Value] = set()
        products = {value for event in trace.events for value in walk(event.value)}
        for product in products:
            factors = _factors_of(product)
            weights = None if factors is None else _find_weights(factors[0])
            if weights is None or weights in reported or product.node is None:
                continue
            if _has_other_use(trace, weights, product) or product.file is None:
                continue
            reported.add(weights)
            yield at_node(
                product.node,
                product.file,
                "The attention weights are written to memory: "
                "scaled_dot_product_attention computes this without them.",
            )


def _factors_of(value: Value) -> tuple[Value, Value] | None:
    """Return the factors of a matrix product."""
    match value:
        case Operation(operator="@", operands=(left, right)):
            return left, right
        case Call() if is_function(value, *_PRODUCTS):
            first = tensor_of(value)
            second = option_of(value, "other")
            return None if first is None or second is None else (first, second)
    return None


def _find_weights(value: Value) -> Value | None:
    """Return the softmax of scaled products of queries and keys that a value is."""
    if is_function(value, "dropout", "Dropout") and isinstance(value, Call):
        dropped = value.argument(0, "input")
        return None if dropped is None else _find_weights(dropped)
    if not is_function(value, "softmax", "Softmax") or not isinstance(value, Call):
        return None
    scores = value.argument(0, "input") if value.path == "()" else tensor_of(value)
    return value if scores is not None and _are_scores(scores) else None


def _are_scores(value: Value, is_scaled: bool = False) -> bool:
    """Return whether a value is a product with transposed keys that is scaled, perhaps masked."""
    match value:
        case Operation(operator="*" | "/", operands=(left, scale)):
            return not is_made_by(scale, "torch.nn.Parameter") and _are_scores(left, True)
        case Operation(operator="+", operands=(left, _)):
            return _are_scores(left, is_scaled)
        case Call(path=".masked_fill", receiver=inner) if inner is not None:
            return _are_scores(inner, is_scaled)
    factors = _factors_of(value)
    return is_scaled and factors is not None and _is_transposed(factors[1])


def _is_transposed(value: Value) -> bool:
    if isinstance(value, Call):
        return value.is_method and value.name in _TRANSPOSED
    return getattr(value, "name", "") in _TRANSPOSED


def _has_other_use(trace: Trace, weights: Value, product: Value) -> bool:
    """Return whether the weights reach anything but the product with the values."""
    own = {id(value) for value in walk(product)}
    for event in trace.events:
        if (
            event.kind == "store"
            and not hasattr(event.target, "id")
            and _is_weights(event, weights)
        ):
            return True
        if event.kind == "call" and id(event.value) not in own and event.value is not product:
            inputs = event.value.inputs
            if any(_reaches(value, weights, product) for value in inputs):
                return True
        if event.kind == "return" and _reaches(event.value, weights, product):
            return True
    return False


def _is_weights(event: object, weights: Value) -> bool:
    value = getattr(event, "value", None)
    return isinstance(value, Value) and _reaches(value, weights, weights)


def _reaches(value: Value, weights: Value, product: Value) -> bool:
    """Return whether a value was made from the weights without the product."""
    waiting = [value]
    seen: set[int] = set()
    while waiting and len(seen) < 500:
        part = waiting.pop()
        if part is weights:
            return True
        if part is product or id(part) in seen:
            continue
        seen.add(id(part))
        waiting.extend(part.inputs)
        if isinstance(part, Call) and part.result is not None:
            waiting.append(part.result)
    return False
