# expect: nothing; ranks: nothing
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Linear(4, 1)
rank = dist.get_rank()
torch.save(model.state_dict(), f"shard_{rank}.pt")
