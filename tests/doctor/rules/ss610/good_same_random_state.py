# expect: nothing
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

X, y = np.ones((20, 4)), np.arange(20) % 2
X_train, X_test = train_test_split(X, random_state=1)
y_train, y_test = train_test_split(y, random_state=1)
LogisticRegression().fit(X_train, y_train)
