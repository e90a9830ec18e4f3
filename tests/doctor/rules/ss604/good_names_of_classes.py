# expect: nothing
import numpy as np
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import LabelEncoder, Normalizer

X = np.random.default_rng(0).normal(size=(40, 3))
y = LabelEncoder().fit_transform(["cat", "dog"] * 20)
X = Normalizer().fit_transform(X)  # scales each sample by itself
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
