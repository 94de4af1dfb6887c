#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds Horovod beside the PyTorch of a venv, and installs it there: tests/reach/horovod.sh VENV. Its newest release is of 2023
# and asks for C++14; the headers of PyTorch 2.13 need C++20. Nothing else is changed. It is built for the CPU, with gloo and without MPI.
# Needs cmake and g++ (tools/install-packages), and many minutes once.
set -euo pipefail

version=0.28.1
venv=$(realpath "${1:?usage: tests/reach/horovod.sh VENV}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PATH="$venv/bin:$PATH" MAKEFLAGS="${MAKEFLAGS:--j2}"
export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1

pip install -q wheel packaging
pip download -q --no-deps --no-build-isolation --no-binary horovod -d "$work" "horovod==$version"
tar -xzf "$work/horovod-$version.tar.gz" -C "$work"
cd "$work/horovod-$version"
sed -i 's/set(CMAKE_CXX_STANDARD 14)/set(CMAKE_CXX_STANDARD 20)/' CMakeLists.txt horovod/torch/CMakeLists.txt
pip install --no-build-isolation .
cd /
python -c 'import horovod.torch as hvd; hvd.init(); assert hvd.gloo_built()'
