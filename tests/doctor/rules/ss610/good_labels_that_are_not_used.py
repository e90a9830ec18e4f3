# expect: nothing
import torch
from torch.nn.functional import cross_entropy, normalize
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(64, 4), torch.zeros(64, dtype=torch.long))
encoder = torch.nn.Linear(4, 8)
optimizer = torch.optim.Adam(encoder.parameters())
for x, _ in DataLoader(data, batch_size=8, shuffle=True):
    first = normalize(encoder(x + 0.1 * torch.randn_like(x)), dim=1)
    second = normalize(encoder(x + 0.1 * torch.randn_like(x)), dim=1)
    positive = (first * second).sum(1, keepdim=True)
    negative = first @ second.roll(1, 0).T
    logits = torch.cat([positive, negative], 1) / 0.1
    optimizer.zero_grad()
    cross_entropy(logits, torch.zeros(len(x), dtype=torch.long)).backward()
    optimizer.step()
