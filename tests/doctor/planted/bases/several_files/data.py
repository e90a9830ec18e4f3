import torch
from torch.utils.data import DataLoader, Dataset


class ColoredSquares(Dataset):
    def __init__(self, count, transform=None, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.arange(count) // (count // 3)
        self.images = 0.3 * torch.randn(count, 3, 8, 8, generator=generator)
        for i, label in enumerate(self.labels):
            self.images[i, label, 2:6, 2:6] += 1.0
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        image = self.images[i]
        if self.transform is not None:
            image = self.transform(image)
        return image, self.labels[i]


class RandomFlip:
    def __init__(self, p=0.5):
        self.p = p

    def __call__(self, image):
        if torch.rand(()) < self.p:
            image = image.flip(-1)
        return image


def build_loaders(batch_size):
    train_set = ColoredSquares(192, transform=RandomFlip(), seed=1)
    val_set = ColoredSquares(48, seed=2)
    train_loader = DataLoader(train_set, batch_size=batch_size, shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, batch_size=batch_size, shuffle=False)
    return train_loader, val_loader
