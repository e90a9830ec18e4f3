# expect: SS115 line 15
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)
x, y = torch.randn(8, 4), torch.randn(8, 1)


def closure() -> torch.Tensor:
    optimizer.zero_grad()
    return torch.nn.functional.mse_loss(model(x), y)


for _ in range(5):
    optimizer.step(closure)
