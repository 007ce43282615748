#!/bin/sh
# Installs the binary of Loquent @VERSION@ for this user: checks it against the release's checksums, puts it into
# ~/.local/bin with its manual pages and completions beside it, and changes nothing else.
#
#   curl -fsSL @URL@/install.sh | sh
#
# `sh install.sh --help` names the settings.
set -eu

version=@VERSION@
release_url=${LOQUENT_RELEASE_URL:-@URL@}
bin=${LOQUENT_INSTALL_DIR:-$HOME/.local/bin}
share=${XDG_DATA_HOME:-$HOME/.local/share}

fail() {
    echo "install.sh: $1" >&2
    exit 1
}

usage() {
    cat <<END
Installs Loquent $version for this user.

    curl -fsSL ${release_url:-URL}/install.sh | sh

Downloads the archive for this machine, checks it against the release's SHA256SUMS, and copies the binary to
$bin, manual pages and completions below $share.

    LOQUENT_INSTALL_DIR   another folder for the binary
    LOQUENT_RELEASE_URL   another address of the release's files, for example a mirror
    XDG_DATA_HOME         another folder for manual pages and completions
    TMPDIR                another folder to unpack in, where programs may run (not mounted noexec)
END
}

# The whole script is one function that is called at the end, so that half a download does nothing.
main() {
    case ${1:-} in
    "") ;;
    -h | --help) usage && exit ;;
    *) fail "there is no option $1; see --help" ;;
    esac
    [ -n "$release_url" ] || fail "set LOQUENT_RELEASE_URL to the address of the release's files"
    name=loquent-$version-$(target)
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    trap 'exit 130' INT TERM
    echo "Downloading $name …"
    download SHA256SUMS
    download "$name.tar.gz"
    verify "$name.tar.gz"
    tar -xzf "$folder/$name.tar.gz" -C "$folder"
    # Said before anything is changed. A shell's 126 is a file that it may not run; an old C library, or another than
    # glibc, has other statuses.
    status=0
    "$folder/$name/loquent" --version >/dev/null || status=$?
    case $status in
    0) ;;
    126) fail "nothing may run in ${folder%/*} (noexec?): set TMPDIR to another folder; nothing was installed" ;;
    *) fail "the binary does not run here: it needs glibc 2.17 or newer; nothing was installed" ;;
    esac
    put "$folder/$name"
    echo "Installed $("$bin/loquent" --version | head -n 1) in $bin"
    case ":$PATH:" in
    *":$bin:"*) echo "Start it: loquent serve" ;;
    *) echo "Start it: $bin/loquent serve   ($bin is not in PATH)" ;;
    esac
}

target() {
    case "$(uname -s)/$(uname -m)" in
    Linux/x86_64 | Linux/amd64) echo x86_64-unknown-linux-gnu ;;
    Linux/aarch64 | Linux/arm64) echo aarch64-unknown-linux-gnu ;;
    Darwin/arm64) echo aarch64-apple-darwin ;;
    Darwin/x86_64) echo x86_64-apple-darwin ;;
    *) fail "there is no binary for $(uname -s) on $(uname -m); build it from the sources" ;;
    esac
}

download() {
    if command -v curl >/dev/null; then
        curl -fsSL --retry 3 -o "$folder/$1" "$release_url/$1" || fail "cannot download $release_url/$1"
    elif command -v wget >/dev/null; then
        wget -q -O "$folder/$1" "$release_url/$1" || fail "cannot download $release_url/$1"
    else
        fail "neither curl nor wget is installed"
    fi
}

verify() {
    # The name is compared as a whole and as text, not as a pattern.
    wanted=$(awk -v name="$1" '$2 == name { print $1 }' "$folder/SHA256SUMS")
    [ -n "$wanted" ] || fail "the release has no checksum of $1"
    if command -v sha256sum >/dev/null; then
        found=$(sha256sum "$folder/$1" | cut -d ' ' -f 1)
    else
        found=$(shasum -a 256 "$folder/$1" | cut -d ' ' -f 1)
    fi
    [ "$found" = "$wanted" ] || fail "$1 is not what the release says it is; nothing was installed"
}

put() { # put FOLDER: the unpacked archive's
    mkdir -p "$bin" "$share/man/man1" "$share/bash-completion/completions" \
        "$share/zsh/site-functions" "$share/fish/vendor_completions.d"
    # Beside its place and then over it: a running binary keeps its file.
    cp "$1/loquent" "$bin/.loquent.new"
    mv -f "$bin/.loquent.new" "$bin/loquent"
    cp "$1"/man/*.1 "$share/man/man1/"
    cp "$1/completions/loquent.bash" "$share/bash-completion/completions/loquent"
    cp "$1/completions/_loquent" "$share/zsh/site-functions/_loquent"
    cp "$1/completions/loquent.fish" "$share/fish/vendor_completions.d/loquent.fish"
}

main "$@"
