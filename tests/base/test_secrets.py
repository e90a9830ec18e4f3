"""Messages are recorded without passwords and tokens."""

import pytest

from surestep.base.secrets import mask_secrets


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("https://me:pass@host/a@b", "https://***@host/a@b"),
        ("'postgresql://me@db/x' and http://a:b@c", "'postgresql://***@db/x' and http://***@c"),
        ("nothing@example.org: see https://host/a@b", None),
        ("the token is s3cret-value!", "the token is ***!"),
        ("the count is 123456", None),
        ("the short one is abc", None),
        ("the setting is visible-value", None),
    ],
)
def test_secret_is_masked(monkeypatch, text, masked):
    for name, value in {
        "HF_TOKEN": "s3cret-value",
        "TOKENS_PER_BATCH": "123456",
        "API_KEY": "abc",
        "SOME_SETTING": "visible-value",
    }.items():
        monkeypatch.setenv(name, value)
    assert mask_secrets(text) == (text if masked is None else masked)
