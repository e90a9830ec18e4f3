"""The code that ejected scripts consist of: plain PyTorch, specialized for a Plan.

`surestep.eject.specialize` describes the marks at the ends of lines.
"""
