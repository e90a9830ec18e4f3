# expect: SS112 line 13; watch: SS112 line 13, SS106 line 18
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
x, y = torch.randn(8, 4), torch.randn(8, 1)


def closure():
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss = torch.tensor(loss.item(), requires_grad=True)
    (loss / 2).backward()
    return loss


for _ in range(5):
    optimizer.step(closure)
