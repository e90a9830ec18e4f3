# expect: nothing
import torch
from torch.nn.functional import cross_entropy

model = torch.nn.Sequential(torch.nn.Embedding(11, 8), torch.nn.Linear(8, 11))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    tokens = torch.randint(11, (4, 6))
    targets = tokens.roll(-1, 1)
    targets[:, -1] = -100
    logits = model(tokens)
    loss = cross_entropy(logits.transpose(1, 2), targets, ignore_index=-100)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
