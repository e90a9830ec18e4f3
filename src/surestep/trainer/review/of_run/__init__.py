"""What rules find in a run at its end: `find(case)` of each module.

Attributes:
    WHILE_TRAINING: the rules that are errors, which are also asked at log points.
"""

WHILE_TRAINING = ("SS204",)
