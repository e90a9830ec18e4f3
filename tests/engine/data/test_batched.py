"""Batches within a token budget, batches of a batch sampler, and tasks without data."""

import itertools

import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Subset

import surestep
from surestep.base.errors import ConfigError, DataError, Preempted, TaskError
from surestep.engine.data.batched import load_batch
from surestep.trainer.dry_run import dry_run
from tests import tiny

LENGTHS = torch.randint(1, 40, (200,), generator=torch.Generator().manual_seed(3)).tolist()


@pytest.mark.parametrize("budget", [40, 64, 1000, 100_000])
def test_every_sample_is_in_one_batch_within_its_budget(budget):
    batches = surestep.batch_by_tokens(LENGTHS, budget)
    assert sorted(index for batch in batches for index in batch) == list(range(200))
    sizes = [len(batch) * max(LENGTHS[index] for index in batch) for batch in batches]
    assert max(sizes) <= budget
    # No two consecutive batches would fit into one, so no batch is wasted.
    joined = [a + b for a, b in itertools.pairwise(batches)]
    assert all(len(both) * max(LENGTHS[i] for i in both) > budget for both in joined)


def test_seed_shuffles_samples_of_equal_length():
    lengths = [5] * 40
    one, two = (surestep.batch_by_tokens(lengths, 20, seed=seed) for seed in (0, 1))
    assert one == surestep.batch_by_tokens(lengths, 20)
    assert one != two


@pytest.mark.parametrize(
    ("lengths", "says"),
    [
        ([3, 90, 4], "Sample 1 has 90 tokens, which is not in 1 to max_tokens=50"),
        ([3, 0, 4], "Sample 1 has 0 tokens, which is not in 1 to"),
        ([2.7, 3.2], "one whole number of tokens for each sample"),
        ([], r"lengths has shape \(0,\)"),
        ([[1, 2]], r"lengths has shape \(1, 2\)"),
    ],
)
def test_invalid_lengths_for_a_token_budget_are_rejected(lengths, says):
    with pytest.raises(DataError, match=says):
        surestep.batch_by_tokens(lengths, 50)


@pytest.mark.parametrize(
    ("batches", "says"),
    [
        ([], "holds no batch"),
        ([[0], []], r"Batch 1 of batches holds the indices \[\]\. Pass at least one"),
        ([[6], [7]], r"Batch 1 of batches holds the indices \[7\]\. .* from 0 to 6"),
        ([[0, 7]], r"Batch 0 of batches holds the indices \[0, 7\]\. .* from 0 to 6"),
        ([[-1]], r"indices \[-1\]"),
    ],
)
def test_batches_with_invalid_indices_are_rejected(batches, says):
    with pytest.raises(DataError, match=says):
        surestep.BatchedDataset(range(7), batches)


class WithoutFirst(surestep.BatchedDataset):
    def __getitem__(self, number):
        return super().__getitem__(number)[1:]


def test_samples_of_batches_in_containers_of_torch_are_counted():
    long = surestep.BatchedDataset(range(10, 20), [[0, 1, 2], [3], [4, 5]], collate_fn=torch.tensor)
    short = WithoutFirst(range(5), [[0, 1, 2], [3, 4]])
    data = Subset(ConcatDataset([long, short, long]), [7, 4, 0, 2, 3, 5])
    found = [load_batch(data, number) for number in range(len(data))]
    assert [(batch.tolist(), samples) for batch, samples in found] == [
        ([14, 15], 2),
        ([4], 1),
        ([10, 11, 12], 3),
        ([14, 15], 2),
        ([1, 2], 2),
        ([10, 11, 12], 3),
    ]
    assert all(torch.equal(data[at], batch) for at, (batch, _) in enumerate(found))


def sentences():
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(1, 20, (length,), generator=generator) for length in LENGTHS]


def pad(samples):
    x = nn.utils.rnn.pad_sequence(samples, batch_first=True)
    return x[:, :-1], x[:, 1:].masked_fill(x[:, 1:] == 0, -100)


def language_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))


def test_training_with_a_token_budget_equals_a_plain_loop(tmp_path):
    batches = [each for each in surestep.batch_by_tokens(LENGTHS, 200) if len(each) > 1]
    train = surestep.BatchedDataset(sentences(), batches, collate_fn=pad)
    loss = surestep.losses.next_token(targets="shifted")
    task = surestep.Task(language_model(), loss, train, batched=True)
    config = surestep.Config(
        max_steps=len(batches),
        max_grad_norm="off",
        optim=surestep.Optim(name="sgd", lr=0.5, weight_decay=0.0),
        data={"shuffle": False},
        logging={"progress": "quiet"},
    )
    surestep.Trainer(task, config, run=tmp_path / "run").fit()
    plain = language_model()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    for place in range(len(batches)):
        x, y = train[place]
        optimizer.zero_grad()
        nn.functional.cross_entropy(plain(x).flatten(0, 1), y.flatten()).backward()
        optimizer.step()
    for one, other in zip(task.model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_batch_sampler_with_varying_sizes_is_rejected_with_a_fix():
    loader = DataLoader(list(range(10)), batch_sampler=[[0, 1], [2, 3, 4], [5, 6, 7, 8, 9]])
    with pytest.raises(DataError, match=r"BatchedDataset\(dataset, batch_sampler\), batched=True"):
        tiny.plan({"train": loader}, batch_size=None)
    x, y = tiny.data(10)
    train = surestep.BatchedDataset(list(zip(x, y, strict=True)), loader.batch_sampler)
    assert [len(train[place][1]) for place in range(len(train))] == [2, 3, 5]


# The step draws its data from an environment: a two-armed bandit whose second arm pays more.


def policy():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 2))


def play(turn):
    for micro in turn.micro_batches("model"):
        assert (micro.args, dict(micro.kwargs), micro.targets) == ((), {}, None)
        logits = turn.model(torch.ones(16, 1))
        arms = torch.distributions.Categorical(logits=logits)
        chosen = arms.sample()
        reward = chosen + 0.1 * torch.randn(16)
        turn.log("reward", reward.mean())
        turn.backward(-(arms.log_prob(chosen) * (reward - 0.5)).mean(), micro)
    turn.step("model")


def environment_task(**parts):
    return surestep.Task(policy(), step=play, **parts)


def of_bandit(**options):
    return surestep.Config(
        **{
            **{"max_steps": 60, "optim": surestep.Optim(lr=0.05)},
            **{"logging": {"progress": "quiet", "every": "10 steps"}, **options},
        }
    )


def test_task_without_data_learns_from_its_environment(tmp_path):
    task = environment_task()
    run = surestep.Trainer(task, of_bandit(), run=tmp_path / "run").fit()
    with torch.no_grad():
        assert float(task.model(torch.ones(1, 1)).softmax(-1)[0, 1]) > 0.9
    assert run.status["step"] == 60


def test_run_without_data_resumes_bitwise_identically(tmp_path):
    class PauseAt17(surestep.Callback):
        def on_step(self, state, result):
            return surestep.Request.PAUSE if result.step == 17 else None

    whole, cut = environment_task(), environment_task()
    surestep.Trainer(whole, of_bandit(), run=tmp_path / "whole").fit()
    with pytest.raises(Preempted):
        surestep.Trainer(cut, of_bandit(), run=tmp_path / "cut", callbacks=[PauseAt17()]).fit()
    again = environment_task()
    surestep.Trainer(again, of_bandit(), run=tmp_path / "cut").fit()
    pairs = zip(whole.model.parameters(), again.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_run_without_training_data_can_have_validation_data(tmp_path):
    val = (torch.ones(10, 1), torch.ones(10).long())
    task = environment_task(loss=nn.CrossEntropyLoss(), val=val)
    run = surestep.Trainer(
        task, of_bandit(validation={"every": "20 steps"}), run=tmp_path / "run"
    ).fit()
    assert run.best.metrics["val/loss"] < 0.3


def test_dry_run_without_data_passes():
    assert [act.what for act in dry_run(environment_task(), of_bandit())][1:2] == ["one step"]


def test_dry_run_of_batched_data_passes():
    ready = [tiny.data(5, seed) for seed in range(4)]
    task = tiny.task(train=ready, val=DataLoader(ready, batch_size=None), batched=True)
    dry_run(task, tiny.config(batch_size=None))


def test_epochs_without_data_are_rejected(tmp_path):
    config = of_bandit(max_steps=None, epochs=3)
    says = r"^epochs=3 needs training data, and the Task has none\. Set max_steps=1000 instead\. \("
    with pytest.raises(ConfigError, match=says) as caught:
        surestep.prepare(environment_task(), config, run=tmp_path / "run")
    assert "stream" not in str(caught.value)


def test_task_without_data_and_step_is_rejected():
    with pytest.raises(TaskError, match=r"no data to train on. Pass Task\(train=...\), or step="):
        surestep.Task(policy(), nn.CrossEntropyLoss())
