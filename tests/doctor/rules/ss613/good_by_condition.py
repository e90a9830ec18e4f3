# expect: nothing
from torchvision import datasets, transforms


def make(train):
    steps = [transforms.RandomCrop(32)] if train else [transforms.CenterCrop(32)]
    transform = transforms.Compose([*steps, transforms.ToTensor()])
    return datasets.CIFAR10("data", train=train, transform=transform)


train_set, test_set = make(True), make(False)
