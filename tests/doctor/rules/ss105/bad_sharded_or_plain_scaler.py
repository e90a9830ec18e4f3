# expect: SS105 line 15; watch: nothing
import torch
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler


def train(model, loader, optimizer, is_sharded, steps=4):
    scaler = ShardedGradScaler() if is_sharded else torch.amp.GradScaler("cuda")
    for step, batch in enumerate(loader):
        with torch.autocast("cuda", torch.float16):
            loss = model(**batch).loss / steps
        scaler.scale(loss).backward()
        if (step + 1) % steps == 0 or step == len(loader) - 1:
            # Every window ends here: the last one may be shorter.
            limit = 1.0
            torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
