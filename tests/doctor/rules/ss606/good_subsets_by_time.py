# expect: nothing
import torch
from torch.utils.data import DataLoader, Dataset, Subset


class Windows(Dataset):
    def __init__(self, series):
        self.series = series

    def __len__(self):
        return len(self.series) - 12

    def __getitem__(self, index):
        return self.series[index : index + 12], self.series[index + 12]


data = Windows(torch.randn(300).cumsum(0))
train = DataLoader(Subset(data, range(220)), 22, shuffle=True)
val = DataLoader(Subset(data, range(220, 288)), 34)
model = torch.nn.Linear(12, 1)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    for x, y in train:
        optimizer.zero_grad()
        (model(x).squeeze(1) - y).pow(2).mean().backward()
        optimizer.step()
    with torch.no_grad():
        print(sum((model(x).squeeze(1) - y).pow(2).sum() for x, y in val))
