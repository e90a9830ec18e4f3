"""Check runs of Trainer by the rules of `surestep.doctor`: one module for each rule, by its code.

A module has one of two functions, which yield a `Problem` for each mistake:

- `inspect(data)`, for the data of a run, before it trains;
- `review(case)`, for a run, at its end. With `WHILE_TRAINING = True`, of a rule that is an error,
  it is called at log points too.

The module of the rule in the doctor declares `REVIEWED = True`. It has the page, the severity and
the fix, and is loaded for a run that has the mistake.
"""
