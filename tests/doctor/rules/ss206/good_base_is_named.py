# expect: nothing
from torch import nn


class Named:
    def __init__(self, name):
        self.name = name


class Net(Named, nn.Module):
    def __init__(self):
        nn.Module.__init__(self)
        Named.__init__(self, "net")
        self.head = nn.Linear(4, 2)


print(Net())
