"""Options that installed packages add, as fields of the Config.

A plug-in is imported when its option is listed, set or planned, and not before: it may import
surestep itself.
"""

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo

from surestep.base.errors import ConfigError
from surestep.base.plugins import OPTIONS, load_plugin, plugin_names
from surestep.config.group import ConfigGroup
from surestep.config.not_set import NotSet
from surestep.config.option import OptionInfo, PluginOption, option


def load_option(name: str) -> PluginOption:
    """Return an option of a plug-in.

    Raises:
        ConfigError: the plug-in cannot be loaded.
    """
    found: PluginOption = load_plugin(OPTIONS, name, instance_of=PluginOption)
    return found


def describe_plugin(name: str) -> tuple[FieldInfo, OptionInfo]:
    """Return field and declaration of an option; those of a broken plug-in show what is wrong."""
    try:
        loaded = load_option(name)
    except ConfigError as error:
        return FieldInfo(annotation=str, description=str(error)), OptionInfo(
            str(error), (None, str(error))
        )
    kind, info = loaded.kind | NotSet, loaded.info
    return FieldInfo(annotation=kind, description=info.help_text), info


def _read(name: str, value: Any) -> Any:
    try:
        return TypeAdapter(load_option(name).kind).validate_python(value)
    except ValidationError as error:
        raise ValueError(
            error.errors()[0]["msg"].replace("Input should be", "it must be")
        ) from None


PLUGINS = tuple(name for name in plugin_names(OPTIONS, ()) if name.isidentifier())

if TYPE_CHECKING:

    class PluginOptions(ConfigGroup):
        """The options of installed packages, which type checkers cannot know."""

else:
    _FIELDS = {
        name: (Annotated[Any, AfterValidator(partial(_read, name))], option("")) for name in PLUGINS
    }
    PluginOptions = create_model("PluginOptions", __base__=ConfigGroup, **_FIELDS)
