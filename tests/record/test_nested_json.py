"""Files nested too deep end in a one-line error, not in a traceback."""

import pytest
from torch import nn

import surestep
from surestep.base.errors import CheckpointError, ConfigError
from surestep.cli.config_file import read_config_file
from surestep.record.io import parse_json
from surestep.record.pretrained import load_init_weights

DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("depth", [101, 500, 990, 100_000])
@pytest.mark.parametrize(("start", "end"), ["[]", ('{"a":', "}")])
def test_nesting_of_json_is_limited(depth, start, end):
    with pytest.raises(ValueError, match="nested too deep"):
        parse_json((start * depth + "1" + end * depth).encode())


def test_nesting_of_a_weight_index_is_limited(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(f'{{"weight_map": {DEEP}}}')
    with pytest.raises(CheckpointError, match="nested too deep"):
        load_init_weights(nn.Linear(1, 1), str(tmp_path / "model.safetensors.index.json"))


@pytest.mark.parametrize("text", [f"a = {DEEP}", f'{{"a": {DEEP}}}'], ids=["TOML", "JSON"])
def test_nesting_of_a_config_file_is_limited(tmp_path, text):
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"a\.toml is (nested too deep|not TOML)"):
        read_config_file(tmp_path / "a.toml")


def test_nesting_of_a_deepspeed_config_is_limited():
    with pytest.raises(ConfigError, match="must be a JSON object: maximum recursion depth"):
        surestep.Config.from_options({"parallel.deepspeed": f'{{"a": {DEEP}}}'})
