# expect: nothing
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

rng = np.random.default_rng(0)
X, y = rng.normal(size=(40, 3)), rng.integers(2, size=40)
model = make_pipeline(StandardScaler(), LogisticRegression())
print(cross_val_score(model, X, y, cv=4).mean())
