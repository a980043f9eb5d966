#!/bin/bash
# packaging/devicebench.sh FOLDER: what travels to a machine with GPUs, for which `make devicebench` calls it: devicebench and the test binaries that it runs, stripped and compressed as one (half of each is what the others have too), and
# the program start, which unpacks them and hands its arguments on. They need the C library alone. A machine that is lent gets them with the repository's tracked files, of which tests read testdata and configs/models (a checkout travels as a whole): both together are to stay below 50 MB, for what else a run brings
# (64 MiB is what such a machine takes). The kernels' PTX in the programs is compressed already, by zstd.
set -euo pipefail
out=$1
most=50000000 # bytes
programs=(devicebench cuda.test model.test engine.test)
mkdir -p "$out"
(cd "$out" && rm -rf programs.tar.xz start unpacked "${programs[@]}")
go build -ldflags='-s -w' -o "$out/devicebench" ./backends/internal/devicebench
for package in tensor/cuda model engine; do
  go test -c -ldflags='-s -w' -o "$out/$(basename $package).test" "./backends/internal/$package"
done
tar -C "$out" -cf - "${programs[@]}" | xz -T1 --x86 --lzma2=preset=6,dict=96MiB >"$out/programs.tar.xz"
(cd "$out" && rm "${programs[@]}")
cat >"$out/start" <<'START'
#!/bin/sh
# start ARGUMENTS: unpacks devicebench and its test binaries into the folder unpacked beside itself, unless that has been done, and runs it, in the repository's root.
set -e
here=$(cd "$(dirname "$0")" && pwd)
packed=$here/programs.tar.xz
if [ ! -e "$here/unpacked" ] || [ "$packed" -nt "$here/unpacked" ]; then
  rm -rf "$here/unpacked" "$here/unpacked.part"
  mkdir "$here/unpacked.part"
  if command -v xz >/dev/null; then
    xz -dc "$packed" | tar -C "$here/unpacked.part" -xmf -
  else
    python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$packed" "$here/unpacked.part"
  fi
  mv "$here/unpacked.part" "$here/unpacked"
fi
exec "$here/unpacked/devicebench" -tests "$here/unpacked" "$@"
START
chmod +x "$out/start"
size=$(stat -c %s "$out/programs.tar.xz")
tracked=$(git ls-files -z | xargs -0 stat -c %s | awk '{ n += $1 } END { print n }')
echo "$out: $((size / 1000000)) MB, with the tracked files $(((size + tracked) / 1000000)) MB of $((most / 1000000))"
[ $((size + tracked)) -le $most ] || { echo "that is more than may travel" >&2; exit 1; }
