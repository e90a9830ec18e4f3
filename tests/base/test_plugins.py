from importlib.metadata import entry_points

from surestep.base import plugins


def test_installed_packages_are_listed_once_for_all_groups(monkeypatch):
    calls = []
    monkeypatch.setattr(plugins, "entry_points", lambda: calls.append(1) or entry_points())
    plugins._plugins.cache_clear()
    for group in (plugins.LOSSES, plugins.OPTIONS, plugins.SCHEDULES, plugins.TRACKERS):
        plugins.plugin_names(group, ())
    assert calls == [1]
