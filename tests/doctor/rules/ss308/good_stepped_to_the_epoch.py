# expect: nothing
import torch


def train(saved: dict, epochs: int) -> None:  # type: ignore[type-arg]
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    for _ in range(saved["epoch"]):
        scheduler.step()
    for _ in range(saved["epoch"], epochs):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()


assert train is not None
