# expect: SS109 line 11
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train_step(x: torch.Tensor, y: torch.Tensor) -> float:
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward(None, True)
    optimizer.step()
    return loss.item()


for _ in range(5):
    train_step(torch.randn(8, 4), torch.randn(8, 1))
