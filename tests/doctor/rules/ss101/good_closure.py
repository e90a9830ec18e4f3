# expect: nothing
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.LBFGS(model.parameters())
x, y = torch.randn(8, 4), torch.randn(8, 1)


def closure() -> torch.Tensor:
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss


for _ in range(5):
    optimizer.step(closure)
