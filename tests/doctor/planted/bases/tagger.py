"""A sequence tagger: sentences of different lengths are padded, and padding is not predicted."""

import random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

PAD_TOKEN = 0
PAD_TAG = -100
NUM_TAGS = 3


class Sentences(Dataset):
    def __init__(self, count, seed):
        rng = random.Random(seed)
        self.rows = []
        for _ in range(count):
            tokens = [rng.randint(1, 20) for _ in range(rng.randint(3, 9))]
            self.rows.append((tokens, [token % NUM_TAGS for token in tokens]))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        tokens, tags = self.rows[index]
        return torch.tensor(tokens), torch.tensor(tags)


def collate(batch):
    tokens, tags = zip(*batch, strict=True)
    tokens = pad_sequence(tokens, batch_first=True, padding_value=PAD_TOKEN)
    tags = pad_sequence(tags, batch_first=True, padding_value=PAD_TAG)
    return tokens, tags


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(21, 16, padding_idx=PAD_TOKEN)
        self.gru = nn.GRU(16, 16, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(0.2)
        self.projection = nn.Linear(32, NUM_TAGS)

    def forward(self, tokens):
        encoded, _ = self.gru(self.embedding(tokens))
        return self.projection(self.dropout(encoded))


def main():
    torch.manual_seed(0)
    random.seed(0)
    train_iter = DataLoader(Sentences(160, 1), batch_size=16, shuffle=True, collate_fn=collate)
    valid_iter = DataLoader(Sentences(32, 2), batch_size=16, collate_fn=collate)
    tagger = Tagger()
    criterion = nn.CrossEntropyLoss(ignore_index=PAD_TAG)
    optimizer = torch.optim.Adam(tagger.parameters(), lr=0.01)
    for epoch in range(3):
        tagger.train()
        losses = []
        for tokens, tags in train_iter:
            optimizer.zero_grad()
            scores = tagger(tokens)
            loss = criterion(scores.view(-1, NUM_TAGS), tags.view(-1))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

        tagger.eval()
        correct, total = 0, 0
        with torch.no_grad():
            for tokens, tags in valid_iter:
                predicted = tagger(tokens).argmax(-1)
                mask = tags != PAD_TAG
                correct += (predicted[mask] == tags[mask]).sum().item()
                total += mask.sum().item()
        print(f"{epoch}: loss {sum(losses) / len(losses):.3f} accuracy {correct / total:.3f}")


main()
