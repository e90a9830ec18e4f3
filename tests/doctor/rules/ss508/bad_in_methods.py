# expect: SS508 line 16; watch: nothing
import torch
from torch import nn
from torch.nn.utils import rnn


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 4), nn.LogSoftmax(-1))
        self.loss = nn.NLLLoss(reduction="sum")

    def forward(self, inputs, tags):
        targets = rnn.pad_sequence(tags, batch_first=True)
        output = self.net(rnn.pad_sequence(inputs, batch_first=True))
        return self.loss(output.flatten(0, 1), targets.flatten())


inputs = [torch.randint(1, 9, (n,)) for n in (3, 5)]
Tagger()(inputs, [torch.randint(1, 4, (n,)) for n in (3, 5)]).backward()
