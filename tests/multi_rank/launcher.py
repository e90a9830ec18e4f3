"""Fork the ranks of `child.py` from this process, as torchrun starts them.

    python -m tests.multi_rank.launcher RANKS FOLDER

This is what `torchrun --standalone` calls, but a rank need not import the libraries: 5 s.
"""

import signal
import sys
from pathlib import Path
from uuid import uuid4

from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from tests.multi_rank.warm import warm_up


def be_rank(folder: str) -> None:
    from tests.multi_rank.child import main  # which reads the number of its rank

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):  # which the launcher handles
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main(Path(folder))


if __name__ == "__main__":
    warm_up()
    import tests.multi_rank.sharded_kinds
    import tests.multi_rank.strategies  # noqa: F401

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=int(sys.argv[1]),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id=str(uuid4()),
        start_method="fork",
        max_restarts=0,
    )
    elastic_launch(config, be_rank)(sys.argv[2])
