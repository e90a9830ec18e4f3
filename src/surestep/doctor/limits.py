"""Limits of rules that `surestep watch` and a run of Trainer measure in two ways."""

# SS116
ENOUGH_TO_NORMALIZE = 32  # samples of a micro-batch
# SS117
FAR_ABOVE_LIMIT = 5.0  # a norm so many times the limit is far above it
CLIPPED_SHARE = 0.8  # of the steps
FEWEST_CLIPPED = 20  # steps
# SS307
COMPLETE_SHARE = 0.95  # of the planned steps: a run with more of them is complete
ABOVE_END = 0.1  # of the peak: nearer to the last rate is near
# SS408
UNHEALTHY = ("overfitting", "flat", "stuck", "diverging")  # states of a curve
# SS605
DUPLICATE_SHARE = 0.01  # of a set, below which nothing is reported
# SS608
SMALL_BATCH = 2  # samples
# SS609
OTHER_SCALE = 1e4  # the largest standard deviation by the smallest
FEWEST_ROWS = 50  # of a table
WIDEST_TABLE = 64  # columns: wider ones are often flat images, or counts of words
# SS614
FEWEST_TIMED = 20  # steps
# SS615
FEWEST_TARGETS = 50  # samples
FEWEST_OTHERS = 10  # samples whose target is not the most frequent one
