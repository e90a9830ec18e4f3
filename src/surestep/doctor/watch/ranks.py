"""Collect the reports of all ranks in one of them.

torchrun and the launchers that build on it keep a store for the processes that they start, until
the last one has ended. Each process writes its report there, and rank 0 reads them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from surestep.doctor.watch.report import Report

_CONNECT = timedelta(seconds=20)
_WAIT_S = 60.0  # for the other ranks, which may still write a file or end an evaluation
_WAIT_AFTER_ERROR_S = 2.0


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together.

    Attributes:
        rank: of this process.
        world: number of processes.
        address: of the store of their launcher, and its port; None if it keeps none.
        attempt: counts the restarts of all processes.
    """

    rank: int = 0
    world: int = 1
    address: tuple[str, int] | None = None
    attempt: str = "0"

    @staticmethod
    def read(environ: Mapping[str, str]) -> Ranks:
        """Return what a launcher wrote into the environment."""
        try:
            rank, world = int(environ["RANK"]), int(environ["WORLD_SIZE"])
            address = (environ["MASTER_ADDR"], int(environ["MASTER_PORT"]))
        except (KeyError, ValueError):
            return Ranks()
        has_store = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        attempt = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return Ranks(rank, world, address if has_store else None, attempt)

    def collect(self, report: Report, *, is_error: bool) -> dict[int, Report]:
        """Send the report of this rank; return those of all on rank 0, and none on others.

        Args:
            report: of this rank.
            is_error: whether the script ended with an error, so that other ranks may never end.
        """
        if self.address is None:
            return {self.rank: report}
        store = self._connect(self.address)
        store.set(self._key(self.rank), json.dumps(report.to_json(), default=str))
        if self.rank != 0:
            return {}
        deadline = time.monotonic() + (_WAIT_AFTER_ERROR_S if is_error else _WAIT_S)
        reports, missing = {0: report}, set(range(1, self.world))
        while missing and time.monotonic() < deadline:
            for rank in sorted(missing):
                if store.check([self._key(rank)]):
                    reports[rank] = Report.from_json(json.loads(store.get(self._key(rank))))
            missing -= reports.keys()
            time.sleep(0.05 if missing else 0)  # in Python, where a signal can interrupt it
        return reports

    def _connect(self, address: tuple[str, int]) -> Any:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        host, port = address
        return TCPStore(host, port, is_master=False, timeout=_CONNECT)

    def _key(self, rank: int) -> str:
        return f"surestep/watch/{self.attempt}/{rank}"
