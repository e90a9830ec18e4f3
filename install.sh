#!/bin/sh
# Install surestep with an extra into a virtual environment, and create that if it does not exist.
#
#   sh install.sh VENV EXTRA PYTHON TORCH
#
# An installed torch, such as a GPU build, is left as it is. Otherwise the pinned CPU build is
# installed first, since a bare `torch` may download gigabytes of CUDA. The versions of the other
# packages are those in constraints.txt.
set -eu
venv=$1 extra=$2 python=$3 torch=$4

mkdir -p "$venv"
exec 9>"$venv/.lock"
if command -v flock >/dev/null 2>&1; then flock 9; fi

mark="$venv/.$extra"
is_new() { [ "$mark" -nt "$1" ]; }
if is_new pyproject.toml && is_new install.sh && is_new constraints.txt; then exit 0; fi
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then "$python" -m venv "$venv"; fi
if ! "$venv/bin/python" -c "import torch" >/dev/null 2>&1; then
    "$venv/bin/python" -m pip install --quiet "$torch"
fi
install() { "$venv/bin/python" -m pip install --quiet --constraint constraints.txt "$@"; }
if [ "$extra" = dev-all ]; then
    # DeepSpeed's setup imports torch, setuptools and wheel, so they come first.
    install "setuptools>=77" wheel
    install --no-build-isolation --editable ".[$extra]"
else
    install --editable ".[$extra]"
fi
touch "$mark"
