"""A stream of samples, split over the workers of the loader; augmented at random."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Stream(IterableDataset):
    def __init__(self, n, seed=0):
        self.n = n
        self.seed = seed
        self.teacher = torch.randn(6, generator=torch.Generator().manual_seed(99))

    def __iter__(self):
        info = get_worker_info()
        first, stride = (0, 1) if info is None else (info.id, info.num_workers)
        order = torch.randperm(self.n, generator=torch.Generator().manual_seed(self.seed)).tolist()
        for index in order[first::stride]:
            g = torch.Generator().manual_seed(self.seed * self.n + index)
            x = torch.randn(6, generator=g)
            yield x + 0.05 * torch.randn(6), (x @ self.teacher).unsqueeze(0)


def worker_init(worker_id):
    torch.set_num_threads(1)


def build(n, seed, workers=0):
    init = worker_init if workers else None
    return DataLoader(Stream(n, seed), batch_size=16, num_workers=workers, worker_init_fn=init)


def main(workers=2):
    torch.manual_seed(10)
    net = nn.Sequential(nn.Linear(6, 32), nn.SiLU(), nn.Linear(32, 1))
    optim = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9)
    sched = torch.optim.lr_scheduler.LambdaLR(optim, lambda step: min(1.0, (step + 1) / 5))
    held_out = build(64, seed=77)
    for epoch in range(2):
        seen, running = 0, 0.0
        for x, y in build(160, seed=epoch, workers=workers):
            loss = nn.functional.huber_loss(net(x), y)
            optim.zero_grad()
            loss.backward()
            optim.step()
            sched.step()
            running += float(loss.detach()) * len(x)
            seen += len(x)
        with torch.no_grad():
            error = sum(((net(x) - y) ** 2).sum() for x, y in held_out) / 64
        print(epoch, seen, round(running / seen, 4), round(error.item(), 4))


if __name__ == "__main__":
    main()
