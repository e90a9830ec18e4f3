"""Frozen parameters: a checkpoint may hold only their fingerprints.

To load it, the model must have the same values already; the fingerprints prove it.
"""

import hashlib
from typing import Any

import torch
from torch import Tensor, nn

from surestep.engine.buffers import bits_of
from surestep.engine.distributed.shards import full_tensor
from surestep.engine.state.state import State

_CHUNK = 1 << 22  # elements of which the sum is computed at once


def fingerprints(model: nn.Module) -> dict[str, str]:
    """Return the frozen parameters by name, each with its fingerprint; waits for the device."""
    return {
        name: fingerprint(parameter)
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if not parameter.requires_grad
    }


def fingerprint(tensor: Tensor) -> str:
    """Return the SHA-256 of a tensor's dtype, shape and values; all ranks call it for a shard."""
    plain = full_tensor(tensor.detach()).cpu().contiguous()
    values: Any = plain.reshape(-1).view(torch.uint8).numpy()
    digest = hashlib.sha256(f"{plain.dtype} {tuple(plain.shape)}".encode())
    digest.update(values)
    return digest.hexdigest()


def note_base(state: State) -> None:
    """Note the frozen parameters, which checkpoints leave out while they are the same."""
    state.base = fingerprints(state.model)
    own = dict(state.model.named_parameters(remove_duplicate=False))
    state.base_sums = {name: _checksum(own[name]) for name in state.base}


def _checksum(tensor: Tensor) -> Tensor:
    """Return a sum of the bits by their place, () int64 on the device; takes little memory."""
    # A product with an even number would lose the sign, the highest bit of 64.
    words = bits_of(full_tensor(tensor.detach()))
    found = torch.zeros((), dtype=torch.int64, device=words.device)
    place = torch.arange(1, min(_CHUNK, max(1, words.numel())) + 1, device=words.device)
    for number, chunk in enumerate(words.split(_CHUNK), 1):
        found += (chunk.long() * place[: len(chunk)]).sum() * (2 * number + 1)
    return found


def omitted_weights(state: State) -> dict[str, str]:
    """Return what a checkpoint leaves out now, with fingerprints.

    A parameter that was unfrozen in between was trained, even if it is frozen again. One that other
    code changed is not the same any more: a target network that follows another, or a module whose
    `train()` merges an adapter.
    """
    trained = {id(p) for optimizer in state.optimizers.values() for p in optimizer.state}
    own = dict(state.model.named_parameters(remove_duplicate=False))
    names = [n for n in state.base if not own[n].requires_grad and id(own[n]) not in trained]
    if not names:
        return {}
    same = torch.stack([_checksum(own[name]) == state.base_sums[name] for name in names])
    return {n: state.base[n] for n, is_same in zip(names, same.tolist(), strict=True) if is_same}
