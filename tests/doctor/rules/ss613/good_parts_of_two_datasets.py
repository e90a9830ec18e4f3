# expect: nothing
import torch
from torch.utils.data import Subset
from torchvision import datasets, transforms

augment = transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor()])
order = torch.randperm(50_000).tolist()
augmented = datasets.CIFAR10("data", train=True, transform=augment)
plain = datasets.CIFAR10("data", train=True, transform=transforms.ToTensor())
train_set, val_set = Subset(augmented, order[5_000:]), Subset(plain, order[:5_000])
