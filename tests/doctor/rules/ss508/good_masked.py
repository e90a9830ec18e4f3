# expect: nothing
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

model = torch.nn.Sequential(torch.nn.Embedding(9, 8), torch.nn.Linear(8, 9))
tokens = pad_sequence([torch.randint(1, 9, (n,)) for n in (3, 5, 4)], batch_first=True)
logits, targets = model(tokens[:, :-1]), tokens[:, 1:]
losses = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
mask = targets != 0
((losses * mask).sum() / mask.sum()).backward()
F.cross_entropy(model(tokens[:, :-1])[mask], targets[mask]).backward()
