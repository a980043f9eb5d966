#!/bin/bash
# packaging/devicebench.sh FOLDER: what travels to a machine with GPUs, for which `make devicebench` calls it: devicebench and the test binaries that it runs, stripped and compressed, and the program start, which unpacks them and hands its
# arguments on. They need the C library alone. With the repository's tracked files they stay below what such a machine takes.
set -euo pipefail
out=$1
most=50000000 # bytes
mkdir -p "$out"
rm -f "$out"/*
go build -ldflags='-s -w' -o "$out/devicebench" ./backends/internal/devicebench
for package in tensor/cuda model engine; do
  go test -c -ldflags='-s -w' -o "$out/$(basename $package).test" "./backends/internal/$package"
done
gzip -9 "$out"/*
cat >"$out/start" <<'START'
#!/bin/sh
# start ARGUMENTS: unpacks devicebench and its test binaries beside itself, unless that has been done, and runs it, in the repository's root.
set -e
here=$(cd "$(dirname "$0")" && pwd)
for packed in "$here"/*.gz; do
  program=${packed%.gz}
  if [ ! -x "$program" ] || [ "$packed" -nt "$program" ]; then
    gzip -dc "$packed" >"$program.$$" && chmod +x "$program.$$" && mv "$program.$$" "$program"
  fi
done
exec "$here/devicebench" -tests "$here" "$@"
START
chmod +x "$out/start"
programs=$(du -cb "$out"/* | tail -n 1 | cut -f 1)
tracked=$(git ls-files -z | xargs -0 du -cb | awk '$2 == "total" { n += $1 } END { print n }')
echo "$out: $((programs / 1000000)) MB, with the tracked files $(((programs + tracked) / 1000000)) MB of $((most / 1000000))"
[ $((programs + tracked)) -le $most ] || { echo "that is more than may travel" >&2; exit 1; }
