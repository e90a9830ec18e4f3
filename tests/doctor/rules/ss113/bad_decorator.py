# expect: SS113 line 11
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


@torch.autocast("cpu", dtype=torch.bfloat16)  # type: ignore[untyped-decorator]
def train_step(x: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()


for _ in range(5):
    train_step(torch.randn(8, 4))
