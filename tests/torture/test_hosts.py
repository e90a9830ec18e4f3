"""The table and the flags of `python -m tests.torture.hosts`."""

import random
from contextlib import ExitStack

import pytest

from tests.needs import needs
from tests.torture import attack
from tests.torture.attack import Effect, Hosts, Outage
from tests.torture.hosts import main

SEEDS = []


def harmless(hosts, folder, choose):
    assert folder.is_dir()
    SEEDS.append(choose.random())
    return Effect(expected=7)


def lossy(hosts, folder, choose):
    return Effect(lost=2, doubled=1, wrong=["the weights differ"], expected=9)


def raising(hosts, folder, choose):
    raise ValueError("no server")


def killing(hosts, folder, choose):
    assert "mlflow" not in vars(hosts)
    vars(hosts)["mlflow"] = "a dead server"
    raise ValueError("no answer")


def skipped(hosts, folder, choose):
    pytest.skip("needs a program")


ATTACKS = {"MLflow killed": harmless, "S3 hangs": lossy, "S3 slow": raising, "SSH killed": skipped}


def test_table_has_all_attacks_and_the_exit_code_is_1_if_one_failed(capsys):
    assert main([], ATTACKS) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "| MLflow killed | 1 | 7 | 0 | 0 | 0 | pass |" in lines
    assert "| S3 hangs | 1 | 9 | 2 | 1 | 1 | **fail** |" in lines
    assert "S3 hangs: the weights differ" in lines
    assert "| S3 slow | 1 | 0 | 0 | 0 | 1 | **fail** |" in lines
    assert any("ValueError in test_hosts.py" in line and "no server" in line for line in lines)
    assert "| SSH killed | 1 | 0 | 0 | 0 | 1 | **fail** |" in lines


def test_words_choose_attacks_and_rounds_have_other_moments(capsys):
    SEEDS.clear()
    assert main(["--rounds", "3", "MLflow"], ATTACKS) == 0
    assert len(set(SEEDS)) == 3
    assert main(["--rounds", "1", "--seed", "2", "killed", "MLflow"], ATTACKS) == 0
    assert SEEDS[3] == SEEDS[2]
    assert "| MLflow killed | 3 | 21 | 0 | 0 | 0 | pass |" in capsys.readouterr().out
    assert main(["--rounds", "2", "hangs"], ATTACKS) == 1
    assert "| S3 hangs | 2 | 18 | 4 | 2 | 2 | **fail** |" in capsys.readouterr().out


def test_attack_after_one_that_raised_has_new_servers(capsys):
    assert main(["--rounds", "2"], {"MLflow killed": killing}) == 1
    assert capsys.readouterr().out.count("ValueError in test_hosts.py") == 2


def test_rounds_begin_until_the_minutes_are_over():
    SEEDS.clear()
    assert main(["--minutes", "0", "MLflow"], ATTACKS) == 0
    assert len(SEEDS) == 1
    assert main(["--minutes", "0.001", "MLflow"], ATTACKS) == 0
    assert len(SEEDS) > 2


def test_unknown_attack_is_an_error_with_the_names(capsys):
    with pytest.raises(SystemExit):
        main(["mail"], ATTACKS)
    assert "Known: MLflow killed, S3 hangs" in capsys.readouterr().err


@pytest.mark.parametrize("rounds", ["0", "-1"])
def test_no_rounds_are_an_error(capsys, rounds):
    with pytest.raises(SystemExit):
        main(["--rounds", rounds], ATTACKS)
    assert f"--rounds {rounds}: pass 1 or more" in capsys.readouterr().err


class Sender:
    def _fail(self, error):
        return "failed"


@pytest.mark.parametrize("fails", [True, False])
def test_outage_that_no_run_notices_is_wrong(monkeypatch, fails):
    monkeypatch.setattr(attack, "NOTICED_S", 0.0)
    done = []
    outage = Outage(monkeypatch, Sender, lambda: done.append("begun"), lambda: done.append("ended"))
    assert outage.wrong == ["the attack had no effect: it did not begin"]
    Sender()._fail(OSError())  # before the outage
    outage.begin()
    if fails:
        assert Sender()._fail(OSError()) == "failed"
    outage.end()
    expected = [] if fails else ["the attack had no effect: the run noticed no failure"]
    assert (outage.wrong, done) == (expected, ["begun", "ended"])


@pytest.mark.slow("starts an S3 server")
def test_mirror_that_is_never_away_is_wrong(monkeypatch, tmp_path):
    needs("s3fs")
    needs("moto")
    from tests.torture.host_mirrors import through_proxy

    monkeypatch.setattr(attack, "NOTICED_S", 0.0)
    with ExitStack() as stack:
        effect = through_proxy(id)(Hosts(stack), tmp_path, random.Random(0))
    wrong = ["the attack had no effect: the run noticed no failure"]
    assert effect == Effect(wrong=wrong, expected=effect.expected)
