# expect: SS305 line 7
import torch


def train(model: torch.nn.Module, epochs: int) -> torch.nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01)
    for _ in range(epochs):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
    return model


train(torch.nn.Linear(4, 1), 5)
