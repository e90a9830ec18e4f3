"""A character LSTM with truncated backpropagation through time."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class CharRNN(nn.Module):
    def __init__(self, vocab, hidden=32, layers=1):
        super().__init__()
        self.hidden, self.layers = hidden, layers
        self.embed = nn.Embedding(vocab, 16)
        self.lstm = nn.LSTM(16, hidden, layers, batch_first=True)
        self.out = nn.Linear(hidden, vocab)

    def forward(self, tokens, state):
        features, state = self.lstm(self.embed(tokens), state)
        features = F.dropout(features, p=0.1, training=self.training)
        return self.out(features), state

    def init_state(self, batch):
        return (
            torch.zeros(self.layers, batch, self.hidden),
            torch.zeros(self.layers, batch, self.hidden),
        )


def detach(state):
    return tuple(s.detach() for s in state)


def batchify(tokens, batch):
    length = tokens.numel() // batch
    return tokens[: length * batch].view(batch, length)


def run_epoch(model, stream, optimizer, seq_len):
    model.train()
    state = model.init_state(stream.size(0))
    total, words = 0.0, 0
    for start in range(0, stream.size(1) - 1, seq_len):
        stop = min(start + seq_len, stream.size(1) - 1)
        x, y = stream[:, start:stop], stream[:, start + 1 : stop + 1]
        state = detach(state)
        model.zero_grad()
        logits, state = model(x, state)
        loss = F.cross_entropy(logits.reshape(-1, logits.size(-1)), y.reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        total += loss.item() * y.numel()
        words += y.numel()
    return total / words


def evaluate(model, stream, seq_len):
    model.eval()
    state = model.init_state(stream.size(0))
    total, words = 0.0, 0
    with torch.no_grad():
        for start in range(0, stream.size(1) - 1, seq_len):
            stop = min(start + seq_len, stream.size(1) - 1)
            x, y = stream[:, start:stop], stream[:, start + 1 : stop + 1]
            logits, state = model(x, state)
            loss = F.cross_entropy(logits.reshape(-1, logits.size(-1)), y.reshape(-1))
            total += loss.item() * y.numel()
            words += y.numel()
    return total / words


def write(model, vocab, text, length):
    tokens = torch.tensor([[vocab.index(c) for c in text]])
    with torch.inference_mode():
        for _ in range(length):
            logits, _ = model(tokens, model.init_state(1))
            token = torch.multinomial(logits[:, -1].softmax(dim=-1), 1)
            tokens = torch.cat([tokens, token], dim=1)
    return "".join(vocab[i] for i in tokens[0].tolist())


def main():
    torch.manual_seed(1)
    corpus = "she sells sea shells by the sea shore. " * 30
    vocab = sorted(set(corpus))
    ids = torch.tensor([vocab.index(c) for c in corpus])
    split = int(len(ids) * 0.85)
    train_stream, valid_stream = batchify(ids[:split], 8), batchify(ids[split:], 4)
    model = CharRNN(len(vocab))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-3)
    for epoch in range(3):
        train_loss = run_epoch(model, train_stream, optimizer, 16)
        valid_loss = evaluate(model, valid_stream, 16)
        print(f"epoch {epoch} train {train_loss:.3f} valid {valid_loss:.3f}")
    print(write(model, vocab, "she ", 20))


if __name__ == "__main__":
    main()
