#!/bin/sh
# Builds llama.cpp's llama-server and llama-batched-bench from the source inside PyPI's
# `llama-cpp-python` package, with the compiler settings that Loquent's own llama.cpp gets.
#
#   bench/peers/build.sh [FOLDER]     default: ${XDG_CACHE_HOME:-~/.cache}/loquent/peers
#
# Prints the folder with the binaries. Needs python3 with pip, cmake and a C++ compiler.
# LLAMA_CPP_PYTHON names another version of the package, JOBS the compilers at once.
set -eu
version=${LLAMA_CPP_PYTHON:-0.3.36}
folder=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/loquent/peers}
tools=$(cd "$(dirname "$0")/../../tools" && pwd)
bin=$folder/bin
stamp=$bin/version

settings=$("$tools/cpu-env")
want="llama-cpp-python $version $(echo "$settings" | tr '\n' ' ')"
if [ -x "$bin/llama-server" ] && [ -x "$bin/llama-batched-bench" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$want" ]; then
    echo "$bin"
    exit 0
fi

mkdir -p "$folder/source" "$bin"
source=$folder/source/llama_cpp_python-$version/vendor/llama.cpp
if [ ! -d "$source" ]; then
    python3 -m pip download --quiet --no-deps --no-binary llama-cpp-python \
        --dest "$folder/source" "llama-cpp-python==$version" >&2
    tar -xzf "$folder/source/llama_cpp_python-$version.tar.gz" -C "$folder/source"
fi

# The crate builds RelWithDebInfo, static, without OpenMP and without GGML_NATIVE; the lines
# of cpu-env (export GGML_AVX512=ON, …) become cmake's definitions.
set -- -DCMAKE_BUILD_TYPE=RelWithDebInfo -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=OFF -DGGML_OPENMP=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_TOOLS=ON \
    -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
    -DLLAMA_OPENSSL=OFF -DLLAMA_CURL=OFF
for setting in $(echo "$settings" | sed -n 's/^export //p'); do
    set -- "$@" "-D$setting"
done
flags="-ffunction-sections -fdata-sections -fPIC -m64 -march=x86-64 -w -g0"
[ "$(uname -m)" = x86_64 ] || flags="-ffunction-sections -fdata-sections -fPIC -w -g0"
cmake -S "$source" -B "$folder/build" -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" "$@" >&2
cmake --build "$folder/build" --target llama-server llama-batched-bench -j "${JOBS:-$(nproc)}" >&2
cp "$folder/build/bin/llama-server" "$folder/build/bin/llama-batched-bench" "$bin/"
echo "$want" >"$stamp"
echo "$bin"
