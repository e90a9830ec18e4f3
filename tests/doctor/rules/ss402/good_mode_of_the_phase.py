# expect: nothing
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for phase in ("train", "val"):
    model.train(phase == "train")
    x, y = torch.randn(8, 4), torch.randint(2, (8,))
    with torch.set_grad_enabled(phase == "train"):
        loss = nn.functional.cross_entropy(model(x), y)
    if phase == "train":
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(phase, loss.item())
