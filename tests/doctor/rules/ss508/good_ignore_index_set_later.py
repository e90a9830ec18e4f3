# expect: nothing
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader


def collate(batch):
    inputs, labels = zip(*batch, strict=True)
    return pad_sequence(inputs, batch_first=True), pad_sequence(labels, batch_first=True)


data = [(torch.randint(1, 9, (n,)), torch.randint(1, 5, (n,))) for n in (3, 5, 4, 2)]
loader = DataLoader(data, batch_size=2, shuffle=True, collate_fn=collate)
model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 5))
criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters())
criterion.ignore_index = 0
for tokens, labels in loader:
    optimizer.zero_grad()
    loss = criterion(model(tokens).transpose(1, 2), labels)
    loss.backward()
    optimizer.step()
