"""The laws: what surestep promises, each with the tests that would notice if it were broken.

1. Cutting: the same global batch gives the same update however it is cut.
2. Resuming: stopped and gone on = never stopped, bit for bit.
3. Plain torch: a run equals a plain PyTorch script.
4. Watching: with callbacks, evaluations, logging and saving on = off.
5. Skipping: a step that is skipped moves nothing, and is counted.
6. No stall: between two log points the host reads nothing from the device.
9. Honest: an explicit wish is never replaced, and what is not known is shown as not known.

`plain.py` holds the plain sides and knows nothing of surestep; `test_mutations.py` breaks each law
on purpose and asks the very same checks to notice.
"""
