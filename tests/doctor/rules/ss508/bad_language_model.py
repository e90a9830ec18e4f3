# expect: SS508 line 11; watch: nothing
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

PAD = 0
model = torch.nn.Sequential(torch.nn.Embedding(9, 8), torch.nn.Linear(8, 9))
texts = [torch.randint(1, 9, (n,)) for n in (3, 5, 4)]
tokens = pad_sequence(texts, batch_first=True, padding_value=PAD)
logits = model(tokens[:, :-1])
F.cross_entropy(logits.reshape(-1, 9), tokens[:, 1:].reshape(-1)).backward()
