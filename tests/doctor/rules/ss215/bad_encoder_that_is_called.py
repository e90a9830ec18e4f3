# expect: SS215 line 10; watch: nothing
from torch import nn


class Tagger(nn.Module):
    def __init__(self, encoder, trainable=False):
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(4, 2)
        self.encoder.requires_grad = trainable

    def forward(self, x):
        return self.head(self.encoder(x))
