# expect: SS508 line 31; watch: nothing
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(9, 8, padding_idx=0), nn.Linear(8, 5)

    def forward(self, tokens):
        hidden = self.embed(tokens)
        scores = hidden @ hidden.transpose(1, 2)
        scores = scores.masked_fill((tokens == 0).unsqueeze(1), -1e9)
        return self.out(scores.softmax(-1) @ hidden)


def collate(batch):
    inputs, labels = zip(*batch, strict=True)
    return pad_sequence(inputs, batch_first=True), pad_sequence(labels, batch_first=True)


data = [(torch.randint(1, 9, (n,)), torch.randint(1, 5, (n,))) for n in (3, 5, 4, 2)]
loader = DataLoader(data, batch_size=2, shuffle=True, collate_fn=collate)
model = Attention()
criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters())
for tokens, labels in loader:
    optimizer.zero_grad()
    criterion(model(tokens).transpose(1, 2), labels).backward()
    optimizer.step()
