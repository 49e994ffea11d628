#!/usr/bin/env bash
# Builds llama-server for the GPU that is there, then checks specdash on it. Needs no network: pack.sh has collected all.
# In steps that resume: call it again after it was cut off, and it goes on where it stopped.
#
# usage: tools/gpu/run.sh [--kit DIR] [--work DIR] [--out DIR] [--minutes M] [--cpu] [--scale F] [--llama-server FILE]
#                         [--build] [--only NAME,NAME…] [--again]
#   --minutes M     end by then, whatever is left (default 9.5: no command may take longer than 10 where GPUs are lent)
#   --cpu           a build and checks without a GPU: the dry run
#   --scale F       models of F times their size (the dry run: 0.02)
#   --llama-server  a binary that is there already: nothing is built
#   --build         build, and check nothing
#   --only, --again checks by name; do those again that are done
# Exit code: 0 nothing failed, 1 something did, 3 time was up first (call it again).
set -euo pipefail
cd "$(dirname "$0")/../.."

kit=.gpu-kit work=/tmp/specdash-gpu out=${OUT:-} minutes=9.5 cpu=0 server= build_only=0 arguments=()
while (($#)); do
  case $1 in
    --kit) kit=${2:?} && shift 2 ;;
    --work) work=${2:?} && shift 2 ;;
    --out) out=${2:?} && shift 2 ;;
    --minutes) minutes=${2:?} && shift 2 ;;
    --llama-server) server=${2:?} && shift 2 ;;
    --cpu) cpu=1 && arguments+=(--cpu) && shift ;;
    --scale | --only) arguments+=("$1" "${2:?}") && shift 2 ;;
    --again) arguments+=("$1") && shift ;;
    --build) build_only=1 && shift ;;
    *) sed -n '2,15s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
  esac
done
end=$(awk -v now="$(date +%s)" -v minutes="$minutes" 'BEGIN {printf "%d", now + 60 * minutes}')
mkdir -p "$work"
work=$(cd "$work" && pwd)
out=${out:-$work/out}
mkdir -p "$out"
say() { printf '== %s (%ss left)\n' "$1" $((end - $(date +%s))); }
# A build step: what it prints goes to build.log, and it ends in time.
step() {
  local left=$((end - $(date +%s))) code=0
  timeout --kill-after 5 $((left > 1 ? left : 1)) "$@" >>"$work/build.log" 2>&1 || code=$?
  ((code == 0)) && return
  ((code == 124 || code == 137)) && say "time was up while building: call run.sh again, it goes on from here" && exit 3
  tail -20 "$work/build.log"
  exit 1
}

python=$work/venv/bin/python
if [ ! -e "$work/venv.done" ]; then
  say "virtual environment"
  rm -rf "$work/venv" "$work/wheels"
  tar xJf "$kit/wheels.tar.xz" -C "$work"
  mkdir -p "$work/kit"
  tar xJf "$kit/models.tar.xz" -C "$work/kit"
  cp "$kit/llama.cpp.version" "$work/kit/"
  # Debian's and Ubuntu's Python come without ensurepip: the pip that is there installs into a bare environment.
  "${PYTHON:-python3}" -m venv --without-pip "$work/venv"
  "${PYTHON:-python3}" -m pip --python "$python" --disable-pip-version-check install -q --no-index --no-deps "$work"/wheels/*.whl
  touch "$work/venv.done"
fi

if [ -z "$server" ]; then
  server=$work/build/bin/llama-server
  if [ ! -e "$work/build.done" ]; then
    # Under another name until all of it is there: a cut run must not leave half of the sources.
    [ -d "$work/llama.cpp" ] || { mkdir -p "$work/unpacking" && tar xJf "$kit/llama.cpp.tar.xz" -C "$work/unpacking" \
      && mv "$work/unpacking/llama.cpp" "$work/"; }
    options=()
    if ((!cpu)); then
      # Compute capability 9.0 is architecture 90.
      architectures=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | tr -d '. ' | sort -u | paste -sd ';')
      options+=(-DGGML_CUDA=ON -DGGML_CUDA_FA=ON "-DCMAKE_CUDA_ARCHITECTURES=$architectures")
      # Without the toolkit's own cuBLAS, that of PyTorch serves.
      "${PYTHON:-python3}" tools/gpu/find_cublas.py >"$work/cublas.options"
      mapfile -t -O "${#options[@]}" options <"$work/cublas.options"
    else
      options+=("-DCMAKE_PROJECT_INCLUDE=$PWD/tools/gpu/dry_build.cmake")
    fi
    say "llama-server, $(nproc) cores, ${options[*]}"
    step cmake -S "$work/llama.cpp" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_CCACHE=OFF -DLLAMA_BUILD_TESTS=OFF \
      -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF "${options[@]}"
    step ninja -C "$work/build" llama-server
    touch "$work/build.done"
  fi
fi

((build_only)) && say "$server" && exit
say "checks"
PYTHONPATH=tools exec "$python" -m gpu run --kit "$work/kit" --work "$work" --out "$out" --llama-server "$server" --until "$end" \
  "${arguments[@]}"
