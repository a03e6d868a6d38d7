#!/bin/sh
# Installs the Debian packages that `make demo` needs; with `test`, also what the tests need; with `releases` or `bench`,
# what only these need. Quick and silent when everything is there. No service is started by it.
#
# usage: tests/install_packages.sh [test|releases|bench]
set -eu
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
python=${PYTHON:-python3}
policy=/usr/sbin/policy-rc.d
mark='# slurm_recovery: no service starts while tests/install_packages.sh runs'
log=

fail() {
    echo "install_packages.sh: $*" >&2
    exit 1
}

# Whether a package's work is done already, by Debian's package or by anything else.
have() {
    case $1 in
    slurm-wlm) command -v slurmctld && command -v slurmd && command -v sbatch ;;
    munge) command -v munged ;;
    python3) command -v "$python" ;;
    python3-venv) "$python" -c 'import ensurepip, venv' ;;
    mariadb-server) command -v mariadbd ;;
    ripgrep) command -v rg ;;
    gcc) command -v cc ;;
    libc6-dev) test -e /usr/include/stdio.h ;;
    libslurm-dev) test -e /usr/include/slurm/spank.h ;;
    groff-base) command -v groff ;;
    util-linux) command -v unshare && command -v setpriv && command -v flock ;;
    *) command -v "$1" ;;
    esac >/dev/null 2>&1
}

missing_of() {
    for package in "$@"; do
        have "$package" || printf '%s ' "$package"
    done
}

clean_up() {
    [ -z "$log" ] || rm -f "$log"
    if [ -f "$policy" ] && grep -qxF "$mark" "$policy"; then rm -f "$policy"; fi
}

case ${1-} in
'') packages='slurm-wlm munge python3 python3-venv' ;;
test) packages='slurm-wlm munge python3 python3-venv mariadb-server make gcc libc6-dev libslurm-dev groff-base' ;;
releases) packages='debootstrap git util-linux' ;;
bench) packages='ripgrep' ;;
*) fail "what is '$1'? usage: install_packages.sh [test|releases|bench]" ;;
esac

# shellcheck disable=SC2086 # words, on purpose
missing=$(missing_of $packages)
if [ -n "$missing" ]; then
    [ "$(id -u)" = 0 ] || fail "not installed: ${missing% }: run this as root, or install them"
    command -v apt-get >/dev/null || fail "not installed: ${missing% }: there is no apt-get here, install them yourself"

    trap clean_up EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    log=$(mktemp)
    # Debian's packages start their services unless this says no (invoke-rc.d(8)). One that is there is the site's own.
    if [ ! -e "$policy" ] && [ ! -L "$policy" ]; then
        printf '#!/bin/sh\n%s\nexit 101\n' "$mark" >"$policy"
        chmod 755 "$policy"
    fi
    echo "installing ${missing% }"
    export DEBIAN_FRONTEND=noninteractive
    apt='apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3'
    # shellcheck disable=SC2086
    if ! { $apt update && $apt install -qy --no-install-recommends $missing; } >"$log" 2>&1 </dev/null; then
        why=$(grep -E '^E: ' "$log" | head -n 1)
        fail "apt-get could not install ${missing% } (${why:-$(tail -n 1 "$log")}): check network and apt's sources"
    fi
    # shellcheck disable=SC2086
    missing=$(missing_of $packages)
    [ -z "$missing" ] || fail "still not there after apt-get: ${missing% }: check PATH and PYTHON ($python)"
fi

case $packages in
*python3*)
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        fail "$("$python" -V) is too old: Python 3.11 or newer is needed (Debian 12 has it); name it with PYTHON="
    ;;
esac
