"""A TorchDispatchMode that does not import torch's compiler."""

from torch.utils._python_dispatch import TorchDispatchMode


class DispatchMode(TorchDispatchMode):
    """A mode whose `__torch_dispatch__` is left as it is.

    torch wraps it so that torch.compile skips it, and the wrapper imports torch._dynamo at its
    first call, which takes about as long as importing torch. These modes run without torch.compile.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
