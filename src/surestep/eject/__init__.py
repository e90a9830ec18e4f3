"""The plain PyTorch script of a Plan: `surestep eject`."""
