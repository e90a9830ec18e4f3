"""A packed batch can be joined with those of other ranks."""

import torch

from surestep.engine.batch import MicroBatch
from surestep.engine.distributed.communicator import ALONE
from surestep.record.batch_dump import decode_batch, gather_batch


def test_batch_dump_of_a_single_process_is_the_full_batch():
    given = MicroBatch((torch.ones(2, 3),), {}, torch.zeros(2), 2, 2, 5, ())
    packed = gather_batch(ALONE, (given,))
    assert set(packed.tensors) == {"rank-0.0.args/0", "rank-0.0.targets"}
    (back,) = decode_batch(packed.record, packed.tensors)
    assert torch.equal(back.args[0], given.args[0])
    assert (back.samples, back.position) == (2, 5)
