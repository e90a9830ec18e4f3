# expect: nothing
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

model = torch.nn.Sequential(torch.nn.Embedding(9, 8), torch.nn.Linear(8, 5))
tokens = pad_sequence([torch.randint(1, 9, (n,)) for n in (3, 5)], batch_first=True)
labels = [torch.randint(5, (n,)) for n in (3, 5)]
targets = pad_sequence(labels, batch_first=True, padding_value=-100)
F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
