"""DistributedDataParallel under torchrun, with accumulation; one process without it."""

import contextlib
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def setup():
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "0")
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("WORLD_SIZE", "1")
    os.environ.setdefault("LOCAL_RANK", "0")
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend)
    local_rank = int(os.environ["LOCAL_RANK"])
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank)
    return torch.device("cpu")


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 32)
        self.relu = nn.ReLU()
        self.drop = nn.Dropout(0.1)
        self.net2 = nn.Linear(32, 4)

    def forward(self, x):
        return self.net2(self.drop(self.relu(self.net1(x))))


def train(device, epochs=3, accumulate=2):
    torch.manual_seed(0)
    x = torch.randn(240, 10)
    dataset = TensorDataset(x, x[:, :4].argmax(1))
    sampler = DistributedSampler(dataset, shuffle=True, drop_last=True)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    model = ToyModel().to(device)
    ddp_model = DDP(model, device_ids=[device.index] if device.type == "cuda" else None)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(ddp_model.parameters(), lr=5e-3)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        ddp_model.train()
        epoch_loss = torch.zeros(2, device=device)
        for step, (inputs, labels) in enumerate(loader):
            inputs, labels = inputs.to(device), labels.to(device)
            is_last = (step + 1) % accumulate == 0 or step + 1 == len(loader)
            context = contextlib.nullcontext() if is_last else ddp_model.no_sync()
            with context:
                loss = criterion(ddp_model(inputs), labels) / accumulate
                loss.backward()
            if is_last:
                nn.utils.clip_grad_norm_(ddp_model.parameters(), 5.0)
                optimizer.step()
                optimizer.zero_grad()
            epoch_loss[0] += loss.detach() * accumulate
            epoch_loss[1] += 1
        dist.all_reduce(epoch_loss)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {(epoch_loss[0] / epoch_loss[1]).item():.4f}")
            torch.save(ddp_model.module.state_dict(), "ddp.pt.tmp")
            os.replace("ddp.pt.tmp", "ddp.pt")
        dist.barrier()


def main():
    device = setup()
    try:
        train(device)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
