# expect: SS114 line 15; ranks: SS114 line 15
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self, model: torch.nn.Module, accumulate: int) -> None:
        self.model = DDP(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.accumulate = accumulate

    def fit(self) -> None:
        for i in range(1, 17):
            loss = self.model(torch.randn(8, 4)).pow(2).mean() / self.accumulate
            loss.backward()
            if i % self.accumulate == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()


store = torch.distributed.HashStore()  # type: ignore[attr-defined]
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
Trainer(torch.nn.Linear(4, 1), 4).fit()
torch.distributed.destroy_process_group()
