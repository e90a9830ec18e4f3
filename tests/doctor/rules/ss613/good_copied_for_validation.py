# expect: nothing
import copy

from torch.utils.data import random_split
from torchvision import datasets, transforms

data = datasets.CIFAR10("data", transform=transforms.AutoAugment())
train_set, val_set = random_split(data, [45_000, 5_000])
val_set.dataset = copy.copy(data)
val_set.dataset.transform = transforms.ToTensor()
