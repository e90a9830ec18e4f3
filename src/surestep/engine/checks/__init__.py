"""Start-up checks: what can be seen before a run, each as a clear message."""
