"""Features that are standardized by hand before the samples are split."""

import pytest

from tests.doctor.scripts import check_text

SCRIPT = """
import numpy as np
import pandas as pd
import torch
from sklearn.model_selection import KFold, train_test_split
from torch.utils.data import random_split

def load(file):
    values = np.load(file)
    return (values - values.mean(0)) / values.std(0)

files = ["a.npy", "b.npy"]
X, y = np.load("X.npy"), np.load("y.npy")
df = pd.read_csv("data.csv")
"""
SPLIT = "train, val = random_split(X, [30, 10])"
LEAKS = {
    "mean and deviation": f"X = (X - X.mean(0)) / X.std(0); {SPLIT}",
    "names": f"mean, std = X.mean(axis=0), X.std(axis=0); X = (X - mean) / (std + 1e-8); {SPLIT}",
    "functions": f"X = (X - np.mean(X, 0)) / np.std(X, 0); {SPLIT}",
    "in place": f"X -= X.mean(0); X /= X.std(0); {SPLIT}",
    "range": f"X = (X - X.min(0)) / (X.max(0) - X.min(0)); {SPLIT}",
    "images": f"X = (X - X.mean((0, 2, 3))) / X.std((0, 2, 3)); {SPLIT}",
    "table": "df = (df - df.mean()) / df.std(); train, test = train_test_split(df)",
    "columns": "c = ['a', 'b']; df[c] = (df[c] - df[c].mean()) / df[c].std(); train_test_split(df)",
    "each column": (
        "for c in ['a', 'b']: df[c] = (df[c] - df[c].mean()) / df[c].std()\ntrain_test_split(df)"
    ),
    "slices": "X = (X - X.mean(0)) / X.std(0); X_train = X[:30]; X_test = X[30:]",
    "parts": f"mean, std = X.mean(0), X.std(0); {SPLIT}; print((val - mean) / std)",
    "one file": f"X = load('X.npy'); {SPLIT}",
}
CORRECT = {
    "each sample": f"X = (X - X.mean(1)) / X.std(1); {SPLIT}",
    "all features together": f"X = (X - X.mean()) / X.std(); {SPLIT}",
    "array of a table": f"X = df.values; X = (X - X.mean()) / X.std(); {SPLIT}",
    "offset": f"X = X - X.min(0); {SPLIT}",
    "labels": f"y = ((X - X.mean(0)) @ np.ones(3)) / 2 > 0; {SPLIT}",
    "name": f"X_train = X[y > 0]; X = (X_train - X_train.mean(0)) / X_train.std(0); {SPLIT}",
    "some samples": f"X = (X - X[:30].mean(0)) / X[:30].std(0); {SPLIT}",
    "other data": f"old = np.load('old.npy'); X = (X - old.mean(0)) / old.std(0); {SPLIT}",
    "transposed": f"X = ((X.T - X.T.mean(0)) / X.T.std(0)).T; {SPLIT}",
    "each of a list": f"X = np.stack([(c - c.mean(0)) / c.std(0) for c in X]); {SPLIT}",
    "each file": f"X = np.stack([load(file) for file in files]); {SPLIT}",
    "windows": ("for i in range(9): w = X[i:]; random_split((w - w.mean(0)) / w.std(0), [3, 1])"),
    "not split": "print((X - X.mean(0)) / X.std(0))",
    "each table": (
        "tables = [pd.read_csv(file) for file in files]\n"
        f"X = [(table - table.mean()) / table.std() for table in tables]; {SPLIT}"
    ),
    "in each fold": (
        "for a, b in KFold().split(X): m = X[a].mean(0); print((X[b] - m) / X[a].std(0))"
    ),
}


def check(lines):
    return check_text(f"{SCRIPT}{lines}\n", "SS604")


@pytest.mark.parametrize("lines", LEAKS.values(), ids=LEAKS)
def test_statistics_of_all_samples_are_reported_once(lines):
    assert len(check(lines)) == 1


@pytest.mark.parametrize("lines", CORRECT.values(), ids=CORRECT)
def test_statistics_of_a_part_or_of_each_sample_are_not_reported(lines):
    assert check(lines) == []
