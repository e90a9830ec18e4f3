# expect: nothing
import torch


class Teacher(torch.nn.Module):
    def train(self, mode=True):
        return super().train(False)


class Timer:
    def train(self, mode=True):
        super().train()


class Student(torch.nn.Module):
    def train(self, mode=True):
        super().train()
        self.training = mode
        return self


print(Teacher().training, Student().eval().training)
