# expect: nothing
import torch
from torch import nn

embedding, rnn, head = nn.Embedding(12, 16), nn.GRU(16, 16, batch_first=True), nn.Linear(16, 12)
optimizer = torch.optim.AdamW(
    [*embedding.parameters(), *rnn.parameters(), *head.parameters()], lr=1e-3
)
text = torch.randint(12, (400,))
for _ in range(8):
    starts = torch.randint(380, (4,))
    tokens = torch.stack([text[start : start + 16] for start in starts])
    logits = head(rnn(embedding(tokens[:, :-1]))[0])
    optimizer.zero_grad()
    nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    optimizer.step()
