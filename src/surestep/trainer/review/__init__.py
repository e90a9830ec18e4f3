"""Check runs of Trainer by the rules of `surestep.doctor`: a module for each rule, by its code.

Each has a function `find`, which yields a `Problem` for each mistake: in `of_data`, it gets the
data of a run before it trains, and in `of_run` the run at its end. Only modules that are asked are
imported.

The module of the rule in the doctor declares `REVIEWED = True`. It has the page, the severity and
the fix, and is loaded for a run that has the mistake.
"""
