"""Which groups of tests find a mistake that no other group finds.

    python -m pytest -n 2 -m "not slow" -p tests.mutants.seconds \\
        --cov=surestep --cov-context=test --cov-report=
    python -m tests.mutants .coverage seconds.jsonl --count 60 --seed 0
    python -m tests.mutants.report seconds.jsonl mutants.jsonl

`--planted FILE` runs the mutants of a JSON list of {"path", "line", "was", "now"} instead.

The first command needs pytest-cov. It records the lines of the package that each test executes, and
the processor seconds of each test. The second draws mutants from lines that the tests of the laws,
the step, the checkpoints and the trainer execute. For each it runs, file by file, the tests that
execute its line. The third prints what each folder finds, and what no other finds.
"""
