# expect: SS703 line 12
import torch


def train(model, loader, loss_fn, optimizer):
    for _ in range(10):
        for i, (x, y) in enumerate(loader):
            (loss_fn(model(x), y) / 4).backward()
            if (i + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
                torch.cuda.empty_cache()
