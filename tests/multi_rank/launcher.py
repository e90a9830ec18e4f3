"""Fork ranks from the process that `starter.py` starts, as torchrun starts them.

This is what `torchrun --standalone` calls, but a rank need not import the libraries: 5 s.
"""

import signal
from importlib import import_module
from pathlib import Path
from uuid import uuid4

from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def be_rank(module: str, folder: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):  # which the launcher handles
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    import_module(f"tests.multi_rank.{module}").main(folder)


def main(folder: Path, ranks: str, module: str) -> None:
    """Call `main(folder)` of a module of this package on a number of ranks."""
    # What the ranks import is imported here once; `child.py` reads the number of its rank.
    for name in ("sharded_kinds", "strategies") if module == "child" else (module,):
        import_module(f"tests.multi_rank.{name}")
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=int(ranks),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id=str(uuid4()),
        start_method="fork",
        max_restarts=0,
    )
    elastic_launch(config, be_rank)(module, folder)
