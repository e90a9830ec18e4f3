"""FSDP under torchrun, with an evaluation on all ranks; one process without it."""

import os

import torch
import torch.distributed as dist
import torch.distributed.fsdp
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))


class Model(nn.Module):
    def __init__(self, n_inputs=6, width=16, depth=3, n_classes=3):
        super().__init__()
        self.stem = nn.Linear(n_inputs, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(depth)])
        self.head = nn.Linear(width, n_classes)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def build_model():
    torch.manual_seed(0)
    model = Model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        torch.distributed.fsdp.fully_shard(block, mesh=mesh)
    torch.distributed.fsdp.fully_shard(model, mesh=mesh)
    return model


def build_loader(n, seed, shuffle):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=generator)
    dataset = TensorDataset(x, x[:, :3].argmax(1))
    sampler = DistributedSampler(dataset, shuffle=shuffle, drop_last=shuffle)
    return DataLoader(dataset, batch_size=16, sampler=sampler), sampler


def evaluate(model, loader):
    model.eval()
    totals = torch.zeros(3)
    with torch.no_grad():
        for x, y in loader:
            logits = model(x)
            totals[0] += F.cross_entropy(logits, y, reduction="sum")
            totals[1] += (logits.argmax(1) == y).sum()
            totals[2] += len(y)
    dist.all_reduce(totals)
    loss, correct, count = totals.tolist()
    return loss / count, correct / count


def main(epochs=3):
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("WORLD_SIZE", "1")
    dist.init_process_group("gloo")
    train_loader, sampler = build_loader(192, 1, shuffle=True)
    val_loader, _ = build_loader(64, 2, shuffle=False)
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        loss, accuracy = evaluate(model, val_loader)
        if dist.get_rank() == 0:
            print(epoch, loss, accuracy)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
