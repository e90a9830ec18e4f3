# expect: nothing
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.utils import shuffle

X, y = shuffle(np.ones((20, 4)), np.arange(20) % 2)
X_train, X_test, y_train, y_test = train_test_split(X, y)
LogisticRegression().fit(X_train, y_train)
