# expect: nothing
import torch
from torch import nn


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(12, 8), nn.Linear(8, 12)
        self.encoder = nn.GRU(8, 8, batch_first=True)
        self.decoder = nn.GRU(8, 8, batch_first=True)

    def forward(self, tokens):
        _, code = self.encoder(self.embedding(tokens))
        repeated = code[-1][:, None].expand(-1, tokens.shape[1], -1)
        return self.out(self.decoder(repeated)[0])


model = Autoencoder()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(8):
    tokens = torch.randint(12, (8, 10))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(tokens).transpose(1, 2), tokens).backward()
    optimizer.step()
