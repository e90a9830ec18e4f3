"""A training loop with Accelerate: accumulation, clipping, a schedule with warm-up."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset


def get_linear_schedule(optimizer, warmup, total):
    def factor(step):
        if step < warmup:
            return (step + 1) / warmup
        return max(0.0, (total - step) / (total - warmup))

    return LambdaLR(optimizer, factor)


def get_dataset(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=g)
    return TensorDataset(x, x.argmax(dim=1))


class TextClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU())
        self.dropout = nn.Dropout(0.1)
        self.classifier = nn.Linear(48, 6)

    def forward(self, features):
        return self.classifier(self.dropout(self.encoder(features)))


def training_function():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(42)
    train_dataloader = DataLoader(get_dataset(256, 0), shuffle=True, batch_size=16)
    eval_dataloader = DataLoader(get_dataset(64, 1), shuffle=False, batch_size=32)
    model = TextClassifier()
    optimizer = AdamW(model.parameters(), lr=1e-2)
    num_epochs = 3
    lr_scheduler = get_linear_schedule(optimizer, 4, num_epochs * len(train_dataloader) // 2)
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )
    for epoch in range(num_epochs):
        model.train()
        for features, labels in train_dataloader:
            with accelerator.accumulate(model):
                logits = model(features)
                loss = F.cross_entropy(logits, labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()

        model.eval()
        correct = total = 0
        for features, labels in eval_dataloader:
            with torch.no_grad():
                predictions = model(features).argmax(dim=-1)
            predictions, labels = accelerator.gather_for_metrics((predictions, labels))
            correct += (predictions == labels).sum().item()
            total += len(labels)
        accelerator.print(f"epoch {epoch}: {correct / total:.3f}")


if __name__ == "__main__":
    training_function()
