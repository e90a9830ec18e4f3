"""Find samples of one split that are in another one, also if they differ a little."""

from dataclasses import dataclass

import torch
from torch import Tensor

from surestep.engine.rng import derive_seed
from surestep.trainer.review.data_case import ReadSplit, spread_indices

_NEAR = 0.01  # of the usual distance to a neighbor, below which two samples are near duplicates
_NEIGHBOR = 11  # which neighbor, with the sample itself as the first
_SIMILAR = 0.9  # share of equal windows of tokens, from which two texts are near duplicates
_MOST = (1024, 512)  # samples of the training data, and of the other split, that are compared
_PROJECTED = 32  # dimensions in which distances are measured
_WINDOW = 3  # tokens that are compared together
_FEWEST_TOKENS = 16  # in a sample that is compared by its tokens
_IDENTIFYING = 256  # samples by which this is decided
_FEWEST_READ = 4  # samples of two splits that are called the same
_HASHES = 64  # of the tokens of a sample
_MANY = 0.01  # share of exact duplicates, above which no near ones are searched for
_FEWEST_COLUMNS = 2  # by which samples differ
_BITS = 128.0  # of differing values, from which no two samples are equal by chance


@dataclass(frozen=True)
class Duplicates:
    """Samples of a split that are also in the training data.

    Attributes:
        pairs: the index in the split, and that in the training data, of each.
        share: of the samples of the split, estimated for all of them; of those that were read, if
            one of the splits is a stream that was not read to its end.
        is_exact: whether all their values are equal.
    """

    pairs: list[tuple[int, int]]
    share: float
    is_exact: bool


def find_duplicates(train: ReadSplit, other: ReadSplit) -> Duplicates | None:
    """Return the samples of a split that are also in the training data; None if there are none.

    Samples with few possible values, such as rows of categories, are equal by chance: of those,
    none are returned. The first samples of a stream do not show how far samples usually are from
    each other, so near duplicates of them are not searched for.
    """
    if not train.digests or not other.digests or not _is_identifying(train):
        return None
    constant = _constant_rows(train)
    known = {
        digest: row
        for row, digest, is_constant in zip(train.rows, train.digests, constant, strict=True)
        if not is_constant
    }
    exact = [
        (row, known[digest])
        for row, digest in zip(other.rows, other.digests, strict=True)
        if digest in known
    ]
    if train.share is None or other.share is None:
        return Duplicates(exact, len(exact) / len(other.rows), is_exact=True) if exact else None
    share = min(1.0, len(exact) / len(other.rows) / train.share)
    found = Duplicates(exact, share, is_exact=True) if exact else None
    near = None if share > _MANY else _find_near(train, other)
    return found if near is None or near.share < share else near


def is_same(train: ReadSplit, other: ReadSplit) -> bool:
    """Return whether two splits have the same samples, as far as they were read."""
    if train.count is None:
        return False
    enough = min(train.count, _FEWEST_READ)
    return (
        train.count == other.count
        and len(train.digests) >= enough
        and train.digests == other.digests
    )


def _constant_rows(split: ReadSplit) -> list[bool]:
    """Return for each row whether all its inputs have one value, as an empty image has."""
    table = split.features
    if table is None or table.shape[1] < 2:
        return [False] * len(split.rows)
    return (table == table[:, :1]).all(1).tolist()


def _is_identifying(split: ReadSplit) -> bool:
    """Return whether the inputs have so many different values that no two are equal by chance."""
    if split.inputs is None:
        return True  # sequences of different lengths, or batches
    unique = dict(zip(split.digests, range(len(split.rows)), strict=True)).values()
    rows = torch.tensor(sorted(unique)[:_IDENTIFYING])
    n_varied, bits = 0, 0.0
    for tensor in split.inputs:
        table = tensor[rows].reshape(len(rows), -1)
        table = table[:, : 4096 if table.shape[1] > 4096 else None]
        ordered = table.sort(0).values
        distinct = 1 + (ordered[1:] != ordered[:-1]).sum(0)
        n_varied += int((distinct > len(rows) / 2).sum()) if tensor.is_floating_point() else 0
        bits += float(distinct.float().log2()[distinct > 2].sum())
    return len(rows) > 1 and (n_varied >= _FEWEST_COLUMNS or bits >= _BITS)


def _find_near(train: ReadSplit, other: ReadSplit) -> Duplicates | None:
    """Return samples that differ little from one of the training data.

    Their share is not scaled up if only a part of the training data is compared.
    """
    few, of_other = _pick(train, _MOST[0]), _pick(other, _MOST[1])
    tokens, other_tokens = _tokens(train), _tokens(other)
    if tokens is not None and other_tokens is not None:
        close = _similar_tokens(tokens[few], other_tokens[of_other])
    elif _are_numbers(train) and _are_numbers(other):
        table, other_table = train.features, other.features
        if table is None or other_table is None or table.shape[1] != other_table.shape[1]:
            return None
        close = _close_numbers(table[few], other_table[of_other])
    else:
        return None
    constant = _constant_rows(other)
    pairs = [
        (other.rows[of_other[at]], train.rows[few[nearest]])
        for at, nearest in enumerate(close.tolist())
        if nearest >= 0 and not constant[of_other[at]]
    ]
    return Duplicates(pairs, len(pairs) / len(of_other), is_exact=False) if pairs else None


def _pick(split: ReadSplit, most: int) -> list[int]:
    """Return positions of at most so many of the rows that were read, spread over them."""
    return sorted(spread_indices(len(split.rows), most))


def _are_numbers(split: ReadSplit) -> bool:
    inputs = split.inputs
    return (
        inputs is not None
        and len(inputs) == 1
        and (inputs[0].is_floating_point() or inputs[0].dtype is torch.uint8)
    )


def _close_numbers(train: Tensor, other: Tensor) -> Tensor:
    """Return for each row the nearest row of the training data if it is near, else -1."""
    finite = torch.isfinite(train).all(0) & torch.isfinite(other).all(0)
    spread = train.std(0)
    used = finite & (spread > 0)
    if int(used.sum()) < _FEWEST_COLUMNS or len(train) < 3:
        return torch.full((len(other),), -1)
    train, other = (part[:, used] / spread[used] for part in (train, other))
    if train.shape[1] > _PROJECTED:
        generator = torch.Generator().manual_seed(derive_seed("check", 0))
        onto = torch.randn(train.shape[1], _PROJECTED, generator=generator)
        train, other = train @ onto, other @ onto
    train, other = train.double(), other.double()
    # Of a sample that is in the training data several times, the nearest others are near too.
    neighbors = torch.cdist(train, train).kthvalue(min(_NEIGHBOR, len(train) // 3 + 1), 1).values
    usual = neighbors.median()
    distance, at = torch.cdist(other, train).min(1)
    return torch.where(distance < _NEAR * usual, at, -1)


def _tokens(split: ReadSplit) -> Tensor | None:
    """Return the tokens of each sample, (rows read, tokens); None if they are something else."""
    for tensor in split.inputs or ():
        is_table = tensor.dtype in (torch.int64, torch.int32) and tensor.dim() == 2
        if is_table and tensor.shape[1] >= _FEWEST_TOKENS and int(tensor.max()) > 1:
            return tensor.long()
    return None


def _similar_tokens(train: Tensor, other: Tensor) -> Tensor:
    """Return for each row one of the training data with nearly the same tokens, else -1.

    The share of equal MinHashes estimates how many windows of tokens two samples share.
    Source: https://doi.org/10.1109/SEQUEN.1997.666900
    """
    signatures = [_min_hashes(tokens) for tokens in (train, other)]
    found = torch.full((len(other),), -1)
    for row, signature in enumerate(signatures[1]):
        equal = (signatures[0] == signature).float().mean(1)
        at = int(equal.argmax())
        if equal[at] >= _SIMILAR:
            found[row] = at
    return found


def _min_hashes(tokens: Tensor) -> Tensor:
    """Return the smallest hash of the windows of each row, for several hashes."""
    generator = torch.Generator().manual_seed(derive_seed("check", 0))
    prime = 2**31 - 1
    factors = torch.randint(1, prime, (_HASHES, 2), generator=generator)
    windows = tokens.unfold(1, _WINDOW, 1)
    codes = torch.zeros(windows.shape[:2], dtype=torch.int64)
    for position in range(_WINDOW):
        codes = (codes * 1_000_003 + windows[..., position]) % prime
    hashes = [((codes * a + b) % prime).min(1).values for a, b in factors.tolist()]
    return torch.stack(hashes, 1)
