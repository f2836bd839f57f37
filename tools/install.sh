#!/bin/sh
# Installs what building and testing need on Debian or Ubuntu; elsewhere says what to install. Does nothing if all is there.
set -u
packages="gcc make pkg-config libc6-dev libopenmpi-dev openmpi-bin libjansson-dev libyaml-dev libcriterion-dev libmpfr-dev libgmp-dev libxml2-utils"

have() { # every package has one file or command that shows it
    command -v gcc >/dev/null && command -v pkg-config >/dev/null && command -v mpirun >/dev/null &&
        command -v xmllint >/dev/null && pkg-config --exists ompi-c jansson yaml-0.1 mpfr 2>/dev/null &&
        echo '#include <criterion/criterion.h>
#include <gmp.h>' | gcc -E - >/dev/null 2>&1
}

have && exit 0
if ! command -v apt-get >/dev/null; then
    echo "Please install: a C11 compiler (gcc 12 or later), make, pkg-config, OpenMPI 4.1 with headers, jansson, libyaml, Criterion 2.4, MPFR, GMP, xmllint." >&2
    echo "(Debian names: $packages)" >&2
    exit 1
fi
sudo=""
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || {
        echo "Please install as root: apt-get install $packages" >&2
        exit 1
    }
    sudo="sudo"
fi
echo "installing: $packages" >&2
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -q >/dev/null && $sudo apt-get install -qy --no-install-recommends $packages >/dev/null || {
    echo "apt-get failed; please install: $packages" >&2
    exit 1
}
have || {
    echo "the packages are installed but not all found; needed: $packages" >&2
    exit 1
}
