"""The laws for recurrent state across batches: truncated back-propagation."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

import surestep
from surestep.base.errors import ConfigError, DataError, NonFiniteError, TaskError
from tests.laws.support.plain import distance, two_groups
from tests.laws.support.tasks import assert_moved, assert_same, session_of, snapshot, train
from tests.laws.test_registries import CorruptOutputs

LANES, LENGTH, WINDOWS, SYMBOLS, HIDDEN = 6, 5, 7, 5, 8
STEPS = 2 * WINDOWS  # two epochs
BAD = 4
OPTIONS = {"max_steps": STEPS, "batch_size": LANES}


def symbols(seed=0, samples=LANES * LENGTH * WINDOWS + 3):
    return torch.randint(0, SYMBOLS, (samples,), generator=torch.Generator().manual_seed(seed))


class Speller(nn.Module):
    """Predicts the next symbol with a GRU or an LSTM; outputs are (batch, classes, time)."""

    def __init__(self, kind):
        super().__init__()
        self.table = nn.Embedding(SYMBOLS, HIDDEN)
        self.cells = kind(HIDDEN, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, SYMBOLS)

    def forward(self, x, state):
        outputs, state = self.cells(self.table(x), state)
        return self.head(outputs).transpose(1, 2), state


def speller(kind):
    torch.manual_seed(1)
    return Speller(kind)


def start_of(kind):
    zero = torch.zeros(1, 1, HIDDEN)
    return (zero, zero) if kind is nn.LSTM else zero


def carried(kind=nn.GRU, **parts):
    model = surestep.StatefulRNN(speller(kind), start_of(kind), LANES, dim=1)
    data = surestep.BPTTDataset(symbols(), LANES, LENGTH)
    return surestep.Task(**{"model": model, "loss": nn.CrossEntropyLoss(), "train": data, **parts})


def plain_loop(model, kind):
    """Train a plain loop that detaches the state at each window."""
    text = symbols()
    used = LANES * LENGTH * WINDOWS
    x, y = (part[:used].view(LANES, -1) for part in (text[:-1], text[1:]))
    optimizer = torch.optim.AdamW(two_groups(model, 0.01), lr=1e-3, fused=True)
    for step in range(STEPS):
        window = step % WINDOWS
        if window == 0:
            state = torch.zeros(1, LANES, HIDDEN)
            state = (state, state.clone()) if kind is nn.LSTM else state
        where = slice(window * LENGTH, (window + 1) * LENGTH)
        outputs, state = model(x[:, where], state)
        state = tuple(tensor.detach() for tensor in state) if kind is nn.LSTM else state.detach()
        optimizer.zero_grad()
        functional.cross_entropy(outputs, y[:, where], reduction="sum").div(
            LANES * LENGTH
        ).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return state


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return a run that nothing stops, splits or watches."""
    return train(carried(), tmp_path_factory.mktemp("whole") / "run", **OPTIONS)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_law_3_truncated_backpropagation_equals_the_plain_loop(folder, kind):
    plain = speller(kind)
    state = plain_loop(plain, kind)
    session = train(carried(kind), folder(), **OPTIONS)
    assert distance(plain, session.model.model) <= 1e-6
    expected = state[0] if kind is nn.LSTM else state
    torch.testing.assert_close(session.model.state_0, expected, rtol=1e-5, atol=1e-6)


def test_state_changes_the_result(folder):
    """Otherwise the other tests would prove nothing."""
    session, other = train(carried(), folder(), **OPTIONS), carried()
    with torch.no_grad():
        other.model.start_0 += 1
    assert distance(session.model.model, train(other, folder(), **OPTIONS).model.model) > 1e-4


@pytest.mark.parametrize("micro_batch_size", [4, 1])
def test_law_1_split_sequences_give_the_same_update(folder, whole, micro_batch_size):
    cut = train(carried(), folder(), micro_batch_size=micro_batch_size, **OPTIONS)
    assert distance(whole.model, cut.model) <= 1e-6
    torch.testing.assert_close(whole.model.state_0, cut.model.state_0, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("stop", [3, WINDOWS])
def test_law_2_resumed_run_equals_an_uninterrupted_run_bit_for_bit(folder, whole, stop):
    stopped = folder()
    with session_of(carried(), stopped, **OPTIONS) as session:
        for result in session.steps():
            if result.step == stop:
                session.save()
                break
    gone_on = train(carried(), stopped, **OPTIONS)
    assert_same(snapshot(whole), snapshot(gone_on))
    assert whole.model.state_0.abs().sum() > 0


def test_law_4_evaluation_does_not_change_the_recurrent_state(folder, whole):
    val = surestep.BPTTDataset(symbols(9, 200), 4, LENGTH)
    settings = {**OPTIONS, "validation": {"batch_size": 4}}
    with session_of(carried(val=val), folder(), **settings) as watched:
        for _ in watched.steps():
            first = watched.evaluate()
        assert watched.evaluate() == first
    assert_same(snapshot(whole), snapshot(watched))


def test_law_4_recomputed_statistics_do_not_change_the_recurrent_state(folder):
    """SWA runs the training data through the model in training mode."""
    settings = {**OPTIONS, "average": {"kind": "swa", "start": "2 steps", "every": "1 step"}}
    sessions = []
    for saves in (False, True):
        task = carried()
        task.model.model.table = nn.Sequential(task.model.model.table, nn.BatchNorm1d(LENGTH))
        with session_of(task, folder(), **settings) as session:
            for _ in session.steps():
                if saves:
                    session.save()
        sessions.append(session)
    assert sessions[1].plan.average.buffers == "recompute"
    assert_same(*map(snapshot, sessions))


def test_evaluation_carries_its_own_state(folder):
    """The loss over all windows equals that of the full sequences."""
    val = surestep.BPTTDataset(symbols(9, 200), 4, LENGTH)
    settings = {**OPTIONS, "validation": {"batch_size": 4}}
    with session_of(carried(val=val), folder(), **settings) as session:
        found = session.evaluate()["val/loss"]
        inner = session.model.model
    with torch.no_grad():
        outputs, _ = inner(val.inputs, torch.zeros(1, 4, HIDDEN))
    expected = functional.cross_entropy(outputs, val.targets)
    assert found == pytest.approx(float(expected), rel=1e-5)


def test_law_5_skipped_step_restores_the_recurrent_state(folder):
    """The window after the bad one starts from the state before the bad one."""
    task = carried()
    settings = {**OPTIONS, "callbacks": [CorruptOutputs(task.model, BAD)], "on_nonfinite": "skip"}
    with session_of(task, folder(), **settings) as session:
        before = snapshot(session)
        for result in session.steps():
            now = snapshot(session)
            (assert_same if result.step == BAD else assert_moved)(before, now)
            before = now
    assert session.model.state_0.abs().sum() > 0


def test_law_5_step_skipped_on_the_device_restores_the_recurrent_state(folder):
    task = carried()
    with session_of(
        task, folder(), callbacks=[CorruptOutputs(task.model, BAD)], **OPTIONS
    ) as session:
        steps = session.steps()
        for _ in range(BAD - 1):
            next(steps)
        before = snapshot(session)
        with pytest.raises(NonFiniteError, match=f"Step {BAD} "):
            list(steps)
        assert_same(before, snapshot(session))


FOUR = (symbols(0, 6)[:, None], torch.arange(6), torch.ones(6).bool())


@pytest.mark.parametrize(
    ("parts", "options", "error", "sentence"),
    [
        (
            {},
            {"batch_size": 12},
            ConfigError,
            "batch_size=12 holds several windows.*Set batch_size=6",
        ),
        ({}, {"data": {"shuffle": True}}, ConfigError, "'sequential'.*Leave data.shuffle out"),
        (
            {"sampler": surestep.samplers.shuffled()},
            {},
            DataError,
            "in lanes.*sampler is 'shuffled'. Leave Task\\(sampler=...\\) out",
        ),
        (
            {"train": (*FOUR, symbols(0, 6)[:, None])},
            {},
            ConfigError,
            r"data\.shuffle mixes the windows",
        ),
        (
            {"val": surestep.BPTTDataset(symbols(), 7, LENGTH)},
            {},
            TaskError,
            "val data has 7 lanes, and the model 6",
        ),
        (
            {"val": surestep.BPTTDataset(symbols(), 6, LENGTH)},
            {"validation": {"batch_size": 12}},
            ConfigError,
            r"validation\.batch_size=12 holds several windows",
        ),
        (
            {"val": surestep.BPTTDataset(symbols(), 3, LENGTH)},
            {"validation": {"batch_size": 4}},
            ConfigError,
            r"each of the 3 lanes of the val data.*Set validation\.batch_size=3",
        ),
        (
            {"test": surestep.BPTTDataset(symbols(), 7, LENGTH)},
            {},
            TaskError,
            "test data has 7 lanes, and the model 6",
        ),
    ],
)
def test_data_that_is_not_consecutive_is_rejected(folder, parts, options, error, sentence):
    with pytest.raises(error, match=sentence):
        session_of(carried(**parts), folder(), **{**OPTIONS, **options})


def test_initial_state_of_several_sequences_is_rejected():
    with pytest.raises(TaskError, match=r"shape \(1, 6, 8\).*Use dim=1 for nn\.LSTM"):
        surestep.StatefulRNN(speller(nn.GRU), torch.zeros(1, 6, HIDDEN), 6, dim=1)


def test_batch_of_too_many_windows_is_rejected_in_the_forward():
    model = surestep.StatefulRNN(speller(nn.GRU), start_of(nn.GRU), 2, dim=1)
    with pytest.raises(TaskError, match="several windows of one of the 2 lanes"):
        model(symbols(0, 12).view(3, 4), torch.tensor([0, 1, 0]), torch.ones(3).bool())


def test_sequences_are_read_window_by_window():
    data = surestep.BPTTDataset(torch.arange(13), lanes=2, length=3)
    read = [data[index] for index in range(len(data))]
    assert [x.tolist() for x, *_ in read] == [[0, 1, 2], [6, 7, 8], [3, 4, 5], [9, 10, 11]]
    assert read[0][-1].tolist() == [1, 2, 3]
    assert [(int(lane), bool(first)) for _, lane, first, _ in read] == [
        *((0, True), (1, True), (0, False), (1, False))
    ]


@pytest.mark.parametrize("lanes", [0, 7])
def test_too_short_sequence_is_rejected(lanes):
    with pytest.raises(DataError, match="too short for"):
        surestep.BPTTDataset(torch.arange(13), lanes=lanes, length=3)


def test_targets_must_be_as_long_as_inputs():
    with pytest.raises(DataError, match="13 inputs and 5 targets"):
        surestep.BPTTDataset(torch.arange(13), 2, 3, targets=torch.arange(5))
