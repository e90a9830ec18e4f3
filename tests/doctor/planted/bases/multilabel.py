"""Several labels a sample, with logits and BCEWithLogitsLoss."""

import torch
import torch.nn as nn
from torch.optim import Adam
from torch.utils.data import DataLoader, Dataset


class MultiLabelDataset(Dataset):
    def __init__(self, size, seed):
        gen = torch.Generator().manual_seed(seed)
        self.x = torch.randn(size, 10, generator=gen)
        self.y = (self.x[:, :4] + 0.2 * torch.randn(size, 4, generator=gen) > 0.3).float()

    def __len__(self):
        return self.x.shape[0]

    def __getitem__(self, idx):
        return {"x": self.x[idx], "y": self.y[idx]}


class TagModel(nn.Module):
    def __init__(self, n_tags=4):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 32), nn.ELU(), nn.Dropout(0.1))
        self.head = nn.Linear(32, n_tags)

    def forward(self, x):
        return self.head(self.body(x))


def train_fn(model, loader, optimizer, loss_fn, device):
    model.train()
    total_loss = 0.0
    for batch in loader:
        x, y = batch["x"].to(device), batch["y"].to(device)
        optimizer.zero_grad()
        logits = model(x)
        loss = loss_fn(logits, y)
        loss.backward()
        optimizer.step()
        total_loss += loss.item()
    return total_loss / len(loader)


def eval_fn(model, loader, device, threshold=0.5):
    model.eval()
    tp = fp = fn = 0
    with torch.no_grad():
        for batch in loader:
            x, y = batch["x"].to(device), batch["y"].to(device)
            pred = torch.sigmoid(model(x)) > threshold
            tp += (pred & (y > 0.5)).sum().item()
            fp += (pred & (y < 0.5)).sum().item()
            fn += (~pred & (y > 0.5)).sum().item()
    return 2 * tp / max(2 * tp + fp + fn, 1)


def run_training(epochs=4):
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train_loader = DataLoader(MultiLabelDataset(256, 0), batch_size=32, shuffle=True)
    valid_loader = DataLoader(MultiLabelDataset(64, 1), batch_size=32)
    model = TagModel().to(device)
    loss_fn = nn.BCEWithLogitsLoss(pos_weight=torch.full((4,), 1.5, device=device))
    optimizer = Adam(model.parameters(), lr=1e-2)
    best_f1 = 0.0
    for epoch in range(epochs):
        train_loss = train_fn(model, train_loader, optimizer, loss_fn, device)
        f1 = eval_fn(model, valid_loader, device)
        print(f"epoch={epoch} loss={train_loss:.4f} f1={f1:.4f}")
        if f1 > best_f1:
            best_f1 = f1
            best_state = {k: v.detach().cpu().clone() for k, v in model.state_dict().items()}
    torch.save(best_state, "best.pth")


if __name__ == "__main__":
    run_training()
