# expect: SS613 line 9
from torch.utils.data import DataLoader
from torchvision.datasets import SVHN
from torchvision.transforms import v2


def make_loader(split):
    steps = [v2.ToImage(), v2.RandomCrop(32, padding=4), v2.ColorJitter(0.2)]
    return DataLoader(SVHN("data", split="test", transform=v2.Compose(steps)), batch_size=64)


loader = make_loader("test")
