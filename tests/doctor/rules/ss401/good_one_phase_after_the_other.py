# expect: nothing
import torch
from torch import nn

net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for phase in ("train", "val", "train", "val"):
    if phase == "train":
        net.train()
    else:
        net.eval()
    with torch.set_grad_enabled(phase == "train"):
        loss = net(torch.randn(8, 4)).pow(2).mean()
    if phase == "train":
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
