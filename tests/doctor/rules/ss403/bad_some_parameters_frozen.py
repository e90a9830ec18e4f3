# expect: SS403 line 27; watch: SS403 line 27
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 4), torch.randint(3, (64,)))
training, held_out = DataLoader(data, 8, shuffle=True), DataLoader(data, 8)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 3))
for name, parameter in model.named_parameters():
    if name == "0.bias":
        parameter.requires_grad = False
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)


def train() -> None:
    model.train()
    for x, y in training:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def measure() -> None:
    model.eval()
    for x, y in held_out:
        print(nn.functional.cross_entropy(model(x), y).item())


for _ in range(3):
    train()
    measure()
