# expect: SS613 line 8
import torch
import torchvision
import torchvision.transforms as T

augment = T.Compose([T.RandomResizedCrop(32), T.RandAugment(), T.ToTensor()])
data = torchvision.datasets.CIFAR10(root="data", train=True, transform=augment)
train_set, val_set = torch.utils.data.random_split(data, [45_000, 5_000])
