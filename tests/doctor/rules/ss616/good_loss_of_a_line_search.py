# expect: nothing
import torch
from torch import nn
from torch.utils.data import TensorDataset

data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))

optimizer = torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe")
inputs, targets = data.tensors


def closure():
    torch.manual_seed(0)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    return loss


for _ in range(3):
    optimizer.step(closure)
