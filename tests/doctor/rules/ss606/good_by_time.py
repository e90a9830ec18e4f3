# expect: nothing
import numpy as np
from sklearn.model_selection import train_test_split

series, n = np.random.randn(100), 5
X = np.array([series[i : i + n] for i in range(len(series) - n)])
y = np.array([series[i + n] for i in range(len(series) - n)])
X_train, X_test, y_train, y_test = train_test_split(X, y, shuffle=False)
