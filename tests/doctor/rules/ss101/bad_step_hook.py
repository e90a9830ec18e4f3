# expect: SS101 line 19
import torch

model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
other = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)


def finish(*_: object) -> None:
    other.zero_grad()
    schedule.step()


optimizer.register_step_post_hook(finish)
for _ in range(20):
    y = torch.randint(3, (8,))
    torch.nn.functional.cross_entropy(model(torch.randn(8, 4)), y).backward()
    optimizer.step()
