# expect: nothing
import torch


def tune(saved: dict, epochs: int) -> None:  # type: ignore[type-arg]
    model = torch.nn.Linear(4, 1)
    model.load_state_dict(saved["model"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    for _ in range(epochs):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()


tune({"model": torch.nn.Linear(4, 1).state_dict()}, 3)
