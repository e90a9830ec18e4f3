"""The ten laws: what surestep promises; see README.md in this folder."""
