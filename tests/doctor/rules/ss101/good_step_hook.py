# expect: nothing
import torch

model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)


def finish(stepped: torch.optim.Optimizer, *_: object) -> None:
    schedule.step()
    stepped.zero_grad()


optimizer.register_step_post_hook(finish)
for _ in range(20):
    y = torch.randint(3, (8,))
    torch.nn.functional.cross_entropy(model(torch.randn(8, 4)), y).backward()
    optimizer.step()
