#!/bin/sh
# The cluster tests on other Debian releases' Slurm, each in a folder made by debootstrap: .releases/SUITE.
# Such a folder is used again for a week. The run sees a copy of the checkout, and has its own mounts and processes:
# when it ends, or is killed, they end with it. As root.
#
# usage: tests/releases.sh [SUITE...]     (testing, when none is named)
# RELEASES_COMMAND: what to run inside, instead of `make test-cluster`.
set -eu
umask 022
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
checkout=$(cd "$(dirname "$0")/.." && pwd -P)
inside=/srv/slurm_recovery # where the checkout's copy is: any user may read it there
stamp=etc/slurm_recovery.complete
days=7
child=

fail() {
    echo "releases.sh: $*" >&2
    exit 1
}

end_child() {
    [ -z "$child" ] || kill -KILL "$child" 2>/dev/null || :
    exit "$1"
}

# Run something with its own mounts and processes; with it, or with us, all of those end.
contained() {
    setpriv --pdeathsig KILL unshare --mount --propagation private --pid --fork --kill-child -- "$@" &
    child=$!
    status=0
    wait "$child" || status=$?
    child=
    return "$status"
}

# The first Debian archive of this host's apt that has the suite.
find_mirror() {
    for uri in $(debian_archives); do
        if /usr/lib/apt/apt-helper download-file "${uri%/}/dists/$1/InRelease" "$2" >/dev/null 2>&1; then
            echo "${uri%/}"
            return
        fi
    done
}

debian_archives() {
    apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(REPO_URI)' | sed -n 's/^Debian|Debian|//p' | sort -u
}

# What makes apt and pip work here makes them work there: proxies, certificates, resolver, pip's files.
copy_settings() {
    apt-config dump Acquire | grep -iE '^Acquire::[^ ]*(proxy|cainfo|retries)[^ ]* ' >"$1/etc/apt/apt.conf.d/90host" || :
    # A mirror may lag behind, a clock run ahead. Signatures are checked all the same.
    echo 'Acquire::Check-Valid-Until "false";' >>"$1/etc/apt/apt.conf.d/90host"
    for file in /etc/resolv.conf /etc/hosts /etc/pip.conf; do
        copy_file "$1" "$file"
    done
    for folder in /etc/xdg/pip "$HOME/.config/pip" "$HOME/.pip" /usr/local/share/ca-certificates; do
        [ -d "$folder" ] || continue
        find -L "$folder" -type f | while read -r file; do copy_file "$1" "$file"; done
    done
    settings | grep -oE "/[^][:space:],;'\"]+" | sort -u | while read -r file; do copy_file "$1" "$file"; done
}

# Texts that may name files: certificates, constraints.
settings() {
    env | grep -E "$passed" || :
    cat /etc/pip.conf /etc/xdg/pip/pip.conf "$HOME/.config/pip/pip.conf" "$HOME/.pip/pip.conf" 2>/dev/null || :
}
passed='^(PIP_[A-Z_]+|[A-Za-z_]*(_CERT_FILE|_CERT_DIR|_CA_BUNDLE|_CA_CERTS)|(https?|no|all|HTTPS?|NO|ALL)_(proxy|PROXY)|CI|TERM)='

# A file of the host at the same place in the folder; of root's home in root's home.
copy_file() {
    [ -f "$2" ] || return 0
    case $2 in
    "$HOME"/*) target=$1/root${2#"$HOME"} ;;
    *) target=$1$2 ;;
    esac
    mkdir -p "${target%/*}"
    rm -f "$target"
    cp -L "$2" "$target"
}

# In the contained shell: the kernel's file systems, then the command. $1 = folder, the rest = command.
enter() {
    root=$1
    shift
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount --rbind /sys "$root/sys"
    mount -o remount,bind,ro "$root/sys"
    variables=$(env | grep -E "$passed" | cut -d= -f1)
    set -- HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
    for name in $variables; do
        eval "set -- \"\$name=\$$name\" \"\$@\""
    done
    # Not exec: this shell is process 1 of its namespace, and reaps what daemons leave.
    status=0
    chroot "$root" env -i "$@" || status=$?
    exit "$status"
}

build() {
    suite=$1 root=$2
    script=/usr/share/debootstrap/scripts/$suite
    [ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid
    [ -n "$(debian_archives)" ] || apt-get update -q >/dev/null 2>&1 || :
    mirror=$(find_mirror "$suite" "$releases/$suite.InRelease")
    rm -f "$releases/$suite.InRelease"
    [ -n "$mirror" ] || fail "no Debian archive of this host's apt has $suite: check the name, network and apt's sources"
    echo "releases.sh: making $root from $mirror"
    rm -rf --one-file-system "$root"
    contained debootstrap --variant=minbase "$suite" "$root" "$mirror" "$script" >"$root.log" 2>&1 ||
        fail "debootstrap of $suite failed ($(tail -n 1 "$root.log")): see $root.log"
    echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/force-unsafe-io" # nobody needs the folder after a power cut
    copy_settings "$root"
    copy_checkout "$root"
    contained sh "$self" --enter "$root" sh -c "
        set -e
        export DEBIAN_FRONTEND=noninteractive
        apt-get -qy update
        apt-get -qy install --no-install-recommends make git ca-certificates
        sh $inside/tests/install_packages.sh test
        apt-get clean" >>"$root.log" 2>&1 ||
        fail "installing packages into $root failed ($(tail -n 1 "$root.log")): see $root.log"
    : >"$root/$stamp"
}

copy_checkout() {
    target=$1$inside
    mkdir -p "$target"
    find "$target" -mindepth 1 -maxdepth 1 ! -name .venv -exec rm -rf {} +
    (cd "$checkout" && files) | tar -C "$checkout" --no-recursion --null --files-from=- -cf - |
        tar -C "$target" --no-same-owner -xf -
    [ -e "$target/tests/releases.sh" ] || fail "the checkout could not be copied into $1"
}

# What git would hand on, less what has been deleted; each name ends with a NUL.
files() {
    git -c safe.directory='*' ls-files -z --cached --others --exclude-standard | xargs -0 sh -c '
        for file; do if [ -e "$file" ] || [ -L "$file" ]; then printf "%s\0" "$file"; fi; done' sh
}

run_suite() {
    suite=$1 root=$releases/$1
    began=$(date +%s)
    exec 9>"$root.lock"
    flock -n 9 || fail "another run uses $root: wait for it to end"
    [ -n "$(find "$root/$stamp" -mtime "-$days" 2>/dev/null)" ] || build "$suite" "$root"
    copy_settings "$root"
    copy_checkout "$root"
    find "$root/tmp" -mindepth 1 -delete
    built=$(date +%s)
    result=0
    contained sh "$self" --enter "$root" sh -c "cd $inside && ${RELEASES_COMMAND:-make test-cluster PYTHON=/usr/bin/python3}" || result=$?
    echo "releases.sh: $suite: exit $result ($((built - began)) s to make ready, $(($(date +%s) - built)) s to run)"
    exec 9>&-
}

self=$checkout/tests/releases.sh
if [ "${1-}" = --enter ]; then
    shift
    enter "$@"
fi
[ "$(id -u)" = 0 ] || fail "debootstrap and chroot need root: run this as root"
sh "$checkout/tests/install_packages.sh" releases
unshare --mount --propagation private --pid --fork true 2>/dev/null ||
    fail "this machine lets root make no mount namespaces: run it outside a container, or in a privileged one"
HOME=${HOME:-/root}
releases=$checkout/.releases
mkdir -p "$releases"
trap 'end_child 129' HUP
trap 'end_child 130' INT
trap 'end_child 143' TERM
worst=0
for suite in "${@:-testing}"; do
    run_suite "$suite" # sets result
    [ "$result" = 0 ] || worst=$result
done
exit "$worst"
