# expect: nothing
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

val_loader = DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 1)), 8, shuffle=True)
model = nn.Linear(4, 1)
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


class Steps:
    def __init__(self, optimizer):
        self.methods = {"backward": torch.Tensor.backward, "step": optimizer.step}

    def __getattr__(self, name):
        return self.methods[name.removeprefix("do_")]


steps = Steps(optimizer)
for x, y in val_loader:  # of an outer search: it trains on the validation data
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    steps.do_backward(loss)
    steps.do_step()
