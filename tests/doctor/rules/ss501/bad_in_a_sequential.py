# expect: SS501 line 13
import torch
from torch import nn

layers = [nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3), nn.Softmax(dim=-1)]
model = nn.Sequential(*layers).to("cpu")
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
optimizer = torch.optim.AdamW(model.parameters())


def train_step(x, y):
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()


for _ in range(10):
    train_step(torch.randn(8, 4), torch.randint(3, (8,)))
