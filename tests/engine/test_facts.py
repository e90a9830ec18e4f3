import sys
from types import SimpleNamespace

import torch

from surestep.engine.facts import read_facts


def test_the_machine_is_read():
    facts = read_facts()
    assert facts.torch_version == torch.__version__
    assert facts.cpus >= 1
    assert facts.threads == torch.get_num_threads()
    assert len(facts.cuda_devices) == len(facts.cuda_memory)


def test_no_bf16_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    facts = read_facts()
    assert (facts.cuda_devices, facts.bf16_native, facts.tf32) == ((), False, False)


def gpus(monkeypatch, *generations):
    cards = [SimpleNamespace(name="card", total_memory=1, major=major) for major in generations]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(cards))
    monkeypatch.setattr(torch.cuda, "get_device_properties", cards.__getitem__)
    return read_facts()


def test_bf16_is_native_where_all_cards_have_it(monkeypatch):
    assert gpus(monkeypatch, 9, 8).bf16_native
    assert not gpus(monkeypatch, 9, 7).bf16_native


def test_the_display_is_what_stderr_is(monkeypatch):
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: True))
    assert read_facts().display == "terminal"
    monkeypatch.setattr(sys, "stderr", None)
    assert read_facts().display == "none"


def test_a_notebook_is_known_by_its_kernel(monkeypatch):
    shell = SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert read_facts().display == "notebook"
