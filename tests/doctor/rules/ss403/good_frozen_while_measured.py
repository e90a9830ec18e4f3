# expect: nothing
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(32, 4), torch.randint(3, (32,)))
training, held_out = DataLoader(data, 8, shuffle=True), DataLoader(data, 8)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def set_gradients(module: nn.Module, are_on: bool) -> None:
    for parameter in module.parameters():
        parameter.requires_grad = are_on


for _ in range(3):
    model.train()
    set_gradients(model, True)
    for x, y in training:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    set_gradients(model, False)
    print(sum(nn.functional.cross_entropy(model(x), y).item() for x, y in held_out))
