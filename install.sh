#!/bin/sh
# Install surestep with an extra into a virtual environment, made where there is none.
#
#   sh install.sh VENV EXTRA PYTHON TORCH
#
# A torch that is there already, a GPU build say, is left alone; else the pinned CPU build is
# installed first, since a bare `torch` may fetch gigabytes of CUDA.
set -eu
venv=$1 extra=$2 python=$3 torch=$4

mkdir -p "$venv"
exec 9>"$venv/.lock"
if command -v flock >/dev/null 2>&1; then flock 9; fi

mark="$venv/.$extra"
if [ -e "$mark" ] && [ "$mark" -nt pyproject.toml ] && [ "$mark" -nt install.sh ]; then exit 0; fi
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then "$python" -m venv "$venv"; fi
if ! "$venv/bin/python" -c "import torch" >/dev/null 2>&1; then
    "$venv/bin/python" -m pip install --quiet "$torch"
fi
if [ "$extra" = dev ]; then
    # DeepSpeed's setup imports torch, setuptools and wheel: those that are here.
    "$venv/bin/python" -m pip install --quiet "setuptools>=77" wheel
    "$venv/bin/python" -m pip install --quiet --no-build-isolation --editable ".[$extra]"
else
    "$venv/bin/python" -m pip install --quiet --editable ".[$extra]"
fi
touch "$mark"
