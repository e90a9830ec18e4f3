# expect: SS503 line 21
import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.out = nn.Sequential(nn.Linear(8, 10), nn.Softmax(dim=-1))

    def forward(self, tokens):
        hidden, _ = self.lstm(self.embedding(tokens))
        return self.out(hidden)


model, loss_function = Tagger(), nn.NLLLoss()
tokens = torch.randint(10, (4, 7))
output = model(tokens[:, :-1])
loss_function(output.reshape(-1, 10), tokens[:, 1:].reshape(-1)).backward()
