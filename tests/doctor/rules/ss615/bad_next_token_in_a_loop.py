# expect: nothing; watch: SS615 line 23
import torch
from torch import nn


class CharRNN(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 16)
        self.rnn = nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, vocabulary)

    def forward(self, tokens):
        return self.head(self.rnn(self.embedding(tokens))[0])


model, text = CharRNN(12), torch.randint(12, (400,))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(8):
    starts = torch.randint(380, (4,))
    tokens = torch.stack([text[start : start + 16] for start in starts])
    logits = model(tokens)
    loss = nn.functional.cross_entropy(logits.reshape(-1, 12), tokens.reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
