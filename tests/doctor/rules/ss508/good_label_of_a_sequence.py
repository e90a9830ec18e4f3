# expect: nothing
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

embed, out = torch.nn.Embedding(9, 8, padding_idx=0), torch.nn.Linear(8, 3)
texts = [torch.randint(1, 9, (n,)) for n in (3, 5, 4)]
tokens = pad_sequence(texts, batch_first=True)
hidden = embed(tokens).sum(1) / (tokens != 0).sum(1, keepdim=True)
F.cross_entropy(out(hidden), torch.tensor([0, 2, 1])).backward()
