"""Images with augmentation, and a OneCycle schedule that is stepped for each batch."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


def random_shift(image):
    shift = int(torch.randint(-1, 2, ()))
    return torch.roll(image, shift, dims=-1)


class Stripes(Dataset):
    """Images with horizontal, vertical or no stripes; sorted by class."""

    def __init__(self, per_class, augment=None):
        self.images, self.targets = [], []
        for target in range(3):
            for _ in range(per_class):
                image = 0.4 * torch.randn(1, 10, 10)
                if target == 0:
                    image[:, ::2] += 1
                elif target == 1:
                    image[:, :, ::2] += 1
                self.images.append(image)
                self.targets.append(target)
        self.augment = augment

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        image = self.images[index]
        if self.augment:
            image = self.augment(image)
        return image, self.targets[index]


class ConvNet(nn.Module):
    def __init__(self, n_classes=3):
        super().__init__()
        self.conv_layers = nn.ModuleList()
        channels = 1
        for out_channels in (8, 16):
            self.conv_layers.append(nn.Conv2d(channels, out_channels, 3, padding=1, bias=False))
            self.conv_layers.append(nn.BatchNorm2d(out_channels))
            channels = out_channels
        self.register_buffer("mean", torch.randn(1) * 0.01)
        self.fc = nn.Linear(16 * 25, n_classes)

    def forward(self, x):
        x = x - self.mean
        for layer in self.conv_layers:
            x = layer(x)
        x = F.max_pool2d(F.relu(x), 2)
        x = F.dropout(x.flatten(1), 0.2, self.training)
        return F.log_softmax(self.fc(x), dim=1)


def accuracy(model, loader):
    was_training = model.training
    model.eval()
    hits = 0
    with torch.inference_mode():
        for images, targets in loader:
            hits += int((model(images).argmax(-1) == targets).sum())
    model.train(was_training)
    return hits / len(loader.dataset)


def main(n_epochs=3):
    torch.manual_seed(21)
    train_dl = DataLoader(Stripes(64, random_shift), 16, shuffle=True, num_workers=0)
    test_dl = DataLoader(Stripes(16), 48)
    model = ConvNet()
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(
        opt, max_lr=0.05, epochs=n_epochs, steps_per_epoch=len(train_dl)
    )
    for epoch in range(n_epochs):
        for images, targets in train_dl:
            opt.zero_grad()
            loss = F.nll_loss(model(images), targets)
            loss.backward()
            opt.step()
            sched.step()
        print(epoch, loss.item(), sched.get_last_lr(), accuracy(model, test_dl))


if __name__ == "__main__":
    main()
