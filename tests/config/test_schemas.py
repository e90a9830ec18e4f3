"""The schemas of the options are built when they are used: not all at the import."""

from surestep.config.config import Config


def _models(schema):
    """Yield the class of each model in a schema of pydantic."""
    if isinstance(schema, dict):
        if schema.get("type") == "model":
            yield schema["cls"]
        schema = list(schema.values())
    if isinstance(schema, (list, tuple)):
        for part in schema:
            yield from _models(part)


def test_schema_of_the_config_contains_no_schema_of_a_group():
    Config(epochs=1)
    assert list(_models(Config.__pydantic_core_schema__)) == [Config]
