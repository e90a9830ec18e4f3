"""The two tiers of the tests: `make test` runs the quick ones, `make test-all` runs all of them.

The files and folders of SLOW get the mark `slow`. A single test gets it from
`@pytest.mark.slow("reason")`. Every test that needs a compiler or a library of the extra
`dev-all` is slow, and so is a test that takes more than two seconds of processor time.
"""

SLOW = {
    "tests/engine/data/others/": "needs datasets, torchdata and webdataset",
    "tests/engine/model/test_checkpointing.py": "needs transformers",
    "tests/engine/parallel/test_deepspeed_adam.py": "needs deepspeed",
    "tests/engine/schedule/test_transformers.py": "needs transformers",
    "tests/gpu/": "needs an accelerator",
    "tests/multi_rank/": "launches several processes with torchrun",
    "tests/torture/": "kills runs and corrupts their files",
    "tests/trainer/test_predict_hugging_face.py": "needs transformers",
    "tests/laws/test_law_1_hugging_face.py": "needs transformers",
    "tests/laws/test_law_2_kills.py": "kills runs",
    "tests/laws/test_law_2_lora.py": "needs peft and transformers",
    "tests/laws/test_law_2_rollback_kills.py": "kills runs",
    "tests/laws/test_law_7_kills.py": "kills runs",
    "tests/laws/test_mutations.py": "breaks each law and runs its checks again",
}


def is_slow(nodeid: str) -> bool:
    """Whether the table marks the file of a test as slow."""
    return nodeid.startswith(tuple(SLOW))
