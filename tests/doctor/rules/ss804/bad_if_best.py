# expect: SS804 line 6; ranks: SS804 line 6
import torch


def save(model: torch.nn.Module, name: str) -> None:
    torch.save({"model": model.state_dict()}, f"out/{name}.pt")


torch.distributed.init_process_group("gloo")
model = torch.nn.Linear(4, 1)
best = float("inf")
for _ in range(3):
    with torch.inference_mode():
        loss = model(torch.randn(8, 4)).pow(2).mean().item()
    if loss < best:
        best = loss
        save(model, "best")
