# expect: SS401 line 15; watch: skip, needs a library
import textlib
import torch
from torch.nn import functional as F

train_set, held_out = textlib.load("train"), textlib.load("test")
model = textlib.Classifier(classes=3)
optim = textlib.optim.WarmAdam(model.parameters(), lr=1e-4)


def train_epoch():
    model.train()
    for step, (tokens, labels) in enumerate(train_set):
        optim.zero_grad()
        logits = model(tokens)
        F.cross_entropy(logits, labels).backward()
        optim.step()
        if step % 100 == 0:
            eval_epoch()


@torch.no_grad()
def eval_epoch():
    model.eval()
    right = sum((model(tokens).argmax(1) == labels).sum().item() for tokens, labels in held_out)
    print(right)


for _ in range(3):
    train_epoch()
