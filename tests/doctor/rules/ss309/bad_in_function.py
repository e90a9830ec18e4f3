# expect: SS309 line 31
import torch
from torch.utils.data import DataLoader


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def train_epoch(model, loader, optimizer, scaler) -> None:
    model.train()
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def main() -> None:
    model = Net()
    loader = DataLoader(torch.randn(64, 4), batch_size=8, shuffle=True)
    warm = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(warm, T_max=10)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for _ in range(10):
        train_epoch(model, loader, optimizer, scaler)
        scheduler.step()
    state = {"model": model.state_dict(), "scheduler": scheduler.state_dict()}
    print(sorted(state))


if __name__ == "__main__":
    main()
