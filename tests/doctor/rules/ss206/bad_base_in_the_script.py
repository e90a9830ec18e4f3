# expect: SS206 line 11
from torch.nn import Linear, Module


class Base(Module):
    def count(self):
        return sum(p.numel() for p in self.parameters())


class Classifier(Base):
    def __init__(self):
        self.classes = 10
        self.head = Linear(4, self.classes)


print(Classifier.__name__)
