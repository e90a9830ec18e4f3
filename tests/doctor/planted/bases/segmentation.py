"""A small U-Net with cross-entropy and a Dice loss; pixels of class 255 are ignored."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

IGNORE = 255


def double_conv(c_in, c_out):
    return nn.Sequential(
        nn.Conv2d(c_in, c_out, 3, padding=1),
        nn.GroupNorm(2, c_out),
        nn.ReLU(inplace=True),
        nn.Conv2d(c_out, c_out, 3, padding=1),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, n_classes=2):
        super().__init__()
        self.down1 = double_conv(1, 8)
        self.down2 = double_conv(8, 16)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.up1 = double_conv(16, 8)
        self.outc = nn.Conv2d(8, n_classes, 1)

    def forward(self, x):
        skip = self.down1(x)
        x = self.down2(F.max_pool2d(skip, 2))
        x = torch.cat([self.up(x), skip], dim=1)
        return self.outc(self.up1(x))


def dice_loss(logits, masks, eps=1e-6):
    probs = F.softmax(logits, dim=1)[:, 1]
    valid = (masks != IGNORE).float()
    target = (masks == 1).float()
    inter = (probs * target * valid).sum((1, 2))
    union = ((probs + target) * valid).sum((1, 2))
    return 1 - ((2 * inter + eps) / (union + eps)).mean()


def synth(n):
    masks = torch.zeros(n, 12, 12, dtype=torch.long)
    for i in range(n):
        a, b = torch.randint(0, 7, (2,)).tolist()
        masks[i, a : a + 5, b : b + 5] = 1
    images = masks.unsqueeze(1).float() + 0.5 * torch.randn(n, 1, 12, 12)
    masks[:, 0, :] = IGNORE
    return TensorDataset(images, masks)


def train_net(epochs=3, amp=False):
    torch.manual_seed(8)
    train_loader = DataLoader(synth(64), batch_size=8, shuffle=True)
    val_loader = DataLoader(synth(16), batch_size=8, shuffle=False, drop_last=False)
    net = UNet()
    optimizer = torch.optim.RMSprop(net.parameters(), lr=2e-3, weight_decay=1e-8, momentum=0.5)
    criterion = nn.CrossEntropyLoss(ignore_index=IGNORE)
    global_step = 0
    for epoch in range(epochs):
        net.train()
        epoch_loss = 0
        for images, true_masks in train_loader:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
                masks_pred = net(images)
                loss = criterion(masks_pred, true_masks)
                loss = loss + dice_loss(masks_pred, true_masks)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 10.0)
            optimizer.step()
            global_step += 1
            epoch_loss += loss.item()

        net.eval()
        score = 0.0
        with torch.inference_mode():
            for images, true_masks in val_loader:
                score += (1 - dice_loss(net(images), true_masks)).item() * len(images)
        print(f"epoch {epoch} {epoch_loss / len(train_loader):.3f} dice {score / 16:.3f}")


if __name__ == "__main__":
    train_net()
