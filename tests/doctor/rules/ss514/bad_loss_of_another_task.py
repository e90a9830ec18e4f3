# expect: SS514 line 15
import torch
from torch import nn

torch.manual_seed(0)
words, pair = nn.Linear(4, 10), nn.Linear(4, 2)
optimizer = torch.optim.Adam([*words.parameters(), *pair.parameters()])
criterion, log_softmax = nn.NLLLoss(ignore_index=0), nn.LogSoftmax(dim=-1)
for _ in range(10):
    x = torch.randn(8, 4)
    tokens, is_next = torch.randint(10, (8,)), torch.randint(2, (8,))
    word_loss = criterion(log_softmax(words(x)), tokens)
    scores = log_softmax(pair(x))
    optimizer.zero_grad()
    pair_loss = criterion(scores, is_next)
    (word_loss + pair_loss).backward()
    optimizer.step()
