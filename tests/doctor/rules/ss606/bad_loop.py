# expect: SS606 line 15; watch: nothing
import numpy as np
from sklearn.model_selection import train_test_split


def make_windows(series, n_steps):
    X, y = [], []
    for i in range(len(series) - n_steps):
        X.append(series[i : i + n_steps])
        y.append(series[i + n_steps])
    return np.array(X), np.array(y)


X, y = make_windows(np.random.randn(100), 5)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=0)
