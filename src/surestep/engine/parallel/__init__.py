"""The strategies: how one or many processes share a step; one file each."""
