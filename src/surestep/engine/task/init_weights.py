"""Initial weights: what a Task may pass, and a report of what was loaded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from surestep.base.errors import TaskError
from surestep.base.paths import fix_path, working_directory


@dataclass(frozen=True)
class InitWeights:
    """Initial weights, and which of them to load.

    Attributes:
        weights: a .safetensors, .pt, .pth, .bin or .ckpt file, a folder of a Hugging Face model, a
            run folder or one of its checkpoints, or a state dict.
        prefix: loads only the names under this prefix of the file, such as "encoder", and removes
            the prefix.
        into: the submodule of the model to load them into, such as "backbone".
        skip: names to skip, in the model and in the file: "head", "layers.*.bias".

    Raises:
        TaskError: `weights` or `skip` has the wrong type.

    Example:
        >>> import torch
        >>> import surestep
        >>> pretrained = torch.nn.Linear(4, 3).state_dict()
        >>> init = surestep.InitWeights(pretrained, skip=["bias"])
    """

    weights: str | Path | Mapping[str, Tensor]
    prefix: str = ""
    into: str = ""
    skip: Sequence[str] = ()
    _start: str | None = field(
        init=False, repr=False, compare=False, default_factory=working_directory
    )

    def __post_init__(self) -> None:
        if not isinstance(self.weights, (str, Path, Mapping)):
            raise TaskError(
                f"init is a {type(self.weights).__name__}. Give a path, a state dict, or "
                "surestep.InitWeights(path, ...)."
            )
        if isinstance(self.skip, str):
            raise TaskError(
                f"InitWeights(skip={self.skip!r}) is text. Give a list: skip=[{self.skip!r}]."
            )

    @property
    def path(self) -> Path:
        """The file or folder; a relative one is that of the directory where it was given."""
        assert not isinstance(self.weights, Mapping)
        return fix_path(Path(self.weights).expanduser(), self._start)

    @property
    def name(self) -> str:
        """What the weights are called in messages."""
        return "the state dict" if isinstance(self.weights, Mapping) else str(self.weights)

    @property
    def typed(self) -> str:
        """The weights as a user types them in a call."""
        return "state_dict" if isinstance(self.weights, Mapping) else repr(str(self.weights))


Source = InitWeights | str | Path | Mapping[str, Tensor]


@dataclass(frozen=True)
class InitReport:
    """What was loaded, and what was not.

    Attributes:
        source: the file or folder that was read.
        files: its files, each with its SHA-256.
        prefix: that was removed from the file's names.
        loaded: names of the model that were loaded.
        missing: names of the model that are not in the file, and were skipped on purpose.
        unexpected: names of the file that were skipped on purpose.
        converted: "torch.bfloat16 -> torch.float32" and how many, where types differ.
    """

    source: str
    prefix: str
    loaded: list[str]
    missing: list[str]
    unexpected: list[str]
    converted: dict[str, int]
    files: dict[str, str] = field(default_factory=dict)

    def rows(self) -> list[tuple[str, int, str]]:
        """Return a table: what happened to tensors, how many, and their names."""
        rows = [
            ("loaded", len(self.loaded), summarize_names(self.loaded)),
            ("missing, left as they are", len(self.missing), summarize_names(self.missing)),
            ("unexpected, left out", len(self.unexpected), summarize_names(self.unexpected)),
        ]
        rows += [("loaded with another type", n, types) for types, n in self.converted.items()]
        if self.prefix:
            rows.append(("without their prefix", len(self.loaded), self.prefix))
        return rows + [("sha256", 1, f"{file}: {sha}") for file, sha in self.files.items()]

    def sentence(self) -> str:
        """Return the table as a line."""
        kinds = {"loaded": self.loaded, "missing": self.missing, "unexpected": self.unexpected}
        return f"Starting from {self.source}: " + "; ".join(
            f"{len(names)} {kind}"
            + (f" ({summarize_names(names, 3)})" if kind != "loaded" and names else "")
            for kind, names in kinds.items()
        )


def as_init(init: Source) -> InitWeights:
    """Return the initial weights of a Task as InitWeights."""
    return init if isinstance(init, InitWeights) else InitWeights(init)


def summarize_names(names: list[str], limit: int = 8) -> str:
    """Return the first names, and the number of the rest."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
