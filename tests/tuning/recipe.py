"""A small recipe whose trials end in every way that the tests need."""

import torch
from torch import Tensor, nn

import surestep

config = surestep.Config(
    max_steps=12,
    batch_size=8,
    optim=surestep.Optim(lr=0.05),  # AdamW starts fastest
    validation=surestep.Validation(every="3 steps"),
    checkpoint=surestep.Checkpoint(every="2 steps"),
    logging=surestep.Logging(progress="plain", every="3 steps"),
)


def accuracy(logits: Tensor, targets: Tensor) -> Tensor:
    return (logits.argmax(dim=1) == targets).float().mean()


def task(hidden: int = 8, ends: str = "well", wide: bool = False) -> surestep.Task:
    """Classify three classes.

    Args:
        hidden: width of the layer.
        ends: well, raises, nan, or no_memory.
        wide: two layers.
    """
    if ends == "raises":
        raise ValueError("this recipe always fails")
    x = torch.randn(96, 4, generator=torch.Generator().manual_seed(0))
    y = x[:, :3].argmax(dim=1)
    more = [nn.Linear(hidden, hidden), nn.Tanh()] if wide else []
    model = nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), *more, nn.Linear(hidden, 3))
    if ends != "well":
        model.register_forward_hook({"no_memory": out_of_memory, "nan": NanFromStepFive()}[ends])
    return surestep.Task(
        model=model,
        loss=nn.CrossEntropyLoss(),
        train=(x[:64], y[:64]),
        val=(x[64:80], y[64:80]),
        test=(x[80:], y[80:]),
        metrics={"accuracy": accuracy},
    )


class NanFromStepFive:
    """A forward hook that returns NaN from the fifth training step on."""

    def __init__(self) -> None:
        self.steps = 0

    def __call__(self, model: nn.Module, inputs: object, outputs: Tensor) -> Tensor:
        self.steps += model.training
        return outputs * float("nan") if self.steps >= 5 and model.training else outputs


def out_of_memory(*_: object) -> None:
    raise MemoryError("out of memory")
