"""Frozen parameters: a checkpoint may hold only their fingerprints.

To load it, the model must have the same values already; the fingerprints prove it.
"""

import hashlib
from typing import Any

import torch
from torch import Tensor, nn

from surestep.engine.distributed.shards import full_tensor
from surestep.engine.modes import mode_dependent
from surestep.engine.state.state import State


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


def omitted_weights(state: State) -> dict[str, str]:
    """Return what a checkpoint leaves out now, with fingerprints.

    A parameter that was unfrozen in between was trained, even if it is frozen again. One that a
    custom `train()` may change, as merging an adapter does, is compared with what it was.
    """
    trained = {id(p) for optimizer in state.optimizers.values() for p in optimizer.state}
    own = dict(state.model.named_parameters(remove_duplicate=False))
    changing = {id(parameter) for parameter in mode_dependent(state.model)}
    return {
        name: sha
        for name, sha in state.base.items()
        if not own[name].requires_grad
        and id(own[name]) not in trained
        and (id(own[name]) not in changing or fingerprint(own[name]) == sha)
    }
