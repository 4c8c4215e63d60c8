#!/usr/bin/env bash
# Collects what gpu_check.sh needs on a machine without compiler or development packages. Usage: bundle.sh DIR, where DIR holds tandem and
# check_gpu, linked to look for libraries in DIR/lib. The C library, the driver and the CUDA libraries are the machine's own.
set -eu
dir=$1
limit_mib=40
rm -rf "$dir/lib" "$dir/tests"
mkdir -p "$dir/lib" "$dir/tests/gpu" "$dir/tests/data"
for library in $(ldd "$dir/tandem" "$dir/check_gpu" | awk '$2 == "=>" {print $3}' | sort -u); do
	case ${library##*/} in
	libc.so* | libm.so* | libpthread.so* | libdl.so* | librt.so* | ld-linux* | libcuda*) ;;
	*) cp -L "$library" "$dir/lib/" ;;
	esac
done
strip --strip-unneeded "$dir"/lib/*
strip -s "$dir/tandem" "$dir/check_gpu"
cp tests/gpu/*.sh tests/gpu/*.py "$dir/tests/gpu/"
cp -r tests/data/plan "$dir/tests/data/"
git rev-parse HEAD >"$dir/commit"
size=$(du -sm "$dir" | cut -f1)
echo "$dir: $size MiB"
[ "$size" -lt $limit_mib ] || { echo "$dir: $size MiB is more than $limit_mib" >&2; exit 1; }
