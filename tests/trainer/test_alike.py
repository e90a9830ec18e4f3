"""What ranks are told that do not train the same."""

import surestep
from surestep.trainer.alike import _known, told
from surestep.trainer.planning import Origin, plan_task
from tests import tiny


def known(shift=0.0, **said):
    x, y = tiny.data()
    planned = plan_task(tiny.task(train=(x + shift, y)), tiny.config(**said))
    return {name: str(value) for name, value in _known(Origin(), planned)}


def test_other_data_is_told_in_words_with_what_to_type():
    said = told([known(), known(1.0), known(1.0)])
    assert "\n  training data: other values on rank 1-2 than on rank 0\n" in said
    assert "call torch.manual_seed(0) before it is made" in said
    assert "data.some samples" not in said


def test_a_stream_that_begins_otherwise_is_told_so_too():
    said = told([{"data.first samples": "a"}, {"data.first samples": "b"}])
    assert "training data: other values on rank 1 than on rank 0" in said


def test_other_options_are_told_with_their_values_and_no_word_of_data():
    said = told([known(optim=surestep.Optim(lr=0.1)), known(optim=surestep.Optim(lr=0.2))])
    assert "  optim.lr: 0.1 on rank 0; 0.2 on rank 1\n" in said
    assert "manual_seed" not in said
