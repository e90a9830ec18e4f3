# expect: nothing; watch: SS102 line 17
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
x, y = torch.randn(8, 4), torch.randn(8, 1)


def closure():
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.zero_grad()
    return loss


for _ in range(5):
    optimizer.step(closure)
