"""Files that are nested deeper than any program writes them: one line each, no traceback."""

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
def test_json_of_ours_is_limited(depth, start, end):
    with pytest.raises(ValueError, match="nested too deep"):
        parse_json((start * depth + "1" + end * depth).encode())


def test_an_index_of_weights_is_limited(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(f'{{"weight_map": {DEEP}}}')
    with pytest.raises(CheckpointError, match="nested too deep"):
        load_init_weights(nn.Linear(1, 1), str(tmp_path / "model.safetensors.index.json"))


@pytest.mark.parametrize("text", [f"a = {DEEP}", f'{{"a": {DEEP}}}'], ids=["TOML", "JSON"])
def test_a_config_file_is_limited(tmp_path, text):
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"a\.toml is (nested too deep|not TOML)"):
        read_config_file(tmp_path / "a.toml")


def test_a_table_of_deepspeed_is_limited():
    with pytest.raises(ConfigError, match="nested too deep"):
        surestep.Config.from_options({"parallel.deepspeed": f'{{"a": {DEEP}}}'})
