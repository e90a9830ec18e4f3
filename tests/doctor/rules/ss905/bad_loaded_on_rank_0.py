# expect: nothing; ranks: SS905 line 21
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self) -> None:
        dist.init_process_group("gloo")
        self.model = DDP(torch.nn.Linear(4, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        if dist.get_rank() == 0:
            self.load({"weight": torch.ones(1, 4), "bias": torch.zeros(1)})

    def load(self, weights: dict[str, torch.Tensor]) -> None:
        self.model.module.load_state_dict(weights)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(8, 4)).pow(2).mean().backward()
        self.optimizer.step()


trainer = Trainer()
for _ in range(3):
    trainer.step()
