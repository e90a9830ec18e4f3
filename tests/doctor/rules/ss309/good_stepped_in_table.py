# expect: nothing
import torch
from torch.optim.lr_scheduler import StepLR

model = torch.nn.Linear(4, 1)
optimizer_a = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer_b = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = StepLR(optimizer_a, 2)


def train_a() -> None:
    optimizer_a.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer_a.step()


phases = {"a": train_a}
for _ in range(5):
    optimizer_b.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer_b.step()
    phases["a"]()
    scheduler.step()
