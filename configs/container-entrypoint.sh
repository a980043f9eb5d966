#!/bin/sh
# What the container runs: makes an administrator's API key at the first start, prints it once, and starts the program with the container's arguments.
# It finds its files from its own place, so it works the same outside a container.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
keys=$root/data/keys
if [ "${1:-}" = serve ] && [ ! -s "$keys" ]; then
  mkdir -p "$root/data" && [ -w "$root/data" ] || {
    echo "container-entrypoint: $root/data is not writable by user $(id -u): give the volume to that user" >&2
    exit 1
  }
  key=$("$root/bin/tinsmith" key add default --admin --file "$keys")
  echo "API key (shown this once; more with \`tinsmith key add NAME --file $keys\`): $key"
fi
exec "$root/bin/tinsmith" "$@"
