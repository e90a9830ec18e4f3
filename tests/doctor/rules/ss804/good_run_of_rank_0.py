# expect: nothing
import torch
import torch.distributed as dist


def run(rank: int, ranks: int) -> None:
    if ranks > 1:
        dist.init_process_group("gloo", rank=rank, world_size=ranks)
    model = torch.nn.Linear(4, 1)
    if rank == 0:
        torch.save({"model": model.state_dict()}, "model.pt")


ranks = torch.cuda.device_count()
if ranks > 1:
    torch.multiprocessing.spawn(run, args=(ranks,), nprocs=ranks)
else:
    run(0, ranks)
