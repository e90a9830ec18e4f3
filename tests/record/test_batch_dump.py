"""A packed batch can be joined with those of other ranks."""

import numpy as np
import torch

from surestep.engine.batch import MicroBatch
from surestep.engine.distributed.communicator import ALONE
from surestep.record.batch_dump import BatchDump, decode_batch, gather_batch


def test_batch_dump_of_a_single_process_is_the_full_batch():
    given = MicroBatch((torch.ones(2, 3),), {}, torch.zeros(2), 2, 2, 5, ())
    packed = gather_batch(ALONE, (given,))
    assert set(packed.tensors) == {"rank-0.0.args/0", "rank-0.0.targets"}
    (back,) = decode_batch(packed.record, packed.tensors)
    assert torch.equal(back.args[0], given.args[0])
    assert (back.samples, back.position) == (2, 5)


def test_values_that_cannot_be_encoded_are_listed_and_the_others_preserved():
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    extra = {"jagged": nested, "wide": np.longdouble(1), "big-endian": np.arange(3, dtype=">f4")}
    dump = BatchDump((MicroBatch((torch.ones(2),), extra, torch.zeros(2), 2, 2, 0, ()),))
    assert [entry.partition(":")[0] for entry in dump.lost] == ["0.kwargs/jagged", "0.kwargs/wide"]
    assert dump.tensors["0.kwargs/big-endian"].tolist() == [0.0, 1.0, 2.0]
    assert torch.equal(dump.tensors["0.args/0"], torch.ones(2))
