#!/bin/bash
# minio.sh COMMAND… runs a command with TINSMITH_S3 set to a bucket of a MinIO server of its own, which ends with the command.
# The server is built from its Go module, at the first time (two minutes), into .cache/minio. Where TINSMITH_S3 is set already, that bucket is used.
# TINSMITH_TEST_LISTEN is the address where it listens, if that is not loopback's.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -z "${TINSMITH_S3:-}" ] || exec "$@"

version=v0.0.0-20260212201848-7aac2a2c5b7c program=.cache/minio/minio
if [ "$(cat .cache/minio/version 2>/dev/null || true)" != "$version" ]; then
  echo "building MinIO $version (two minutes)"
  GOFLAGS='' CGO_ENABLED=0 GOBIN=$PWD/.cache/minio go install "github.com/minio/minio@$version"
  echo "$version" > .cache/minio/version
fi
folder=$(mktemp -d "${TMPDIR:-/tmp}/tinsmith-minio-XXXXXX") server=
end() {
  [ -z "$server" ] || kill "$server" 2>/dev/null || true
  wait
  rm -rf "$folder"
}
trap end EXIT
trap 'exit 130' INT TERM

bucket=tinsmith host=${TINSMITH_TEST_LISTEN:-127.0.0.1}
mkdir -p "$folder/data/$bucket"
for port in $(shuf -i 20000-29999 -n 5); do
  MINIO_ROOT_USER=tinsmith MINIO_ROOT_PASSWORD=of-the-tests MINIO_UPDATE=off "$program" server "$folder/data" --address "$host:$port" --console-address 127.0.0.1:0 --quiet > "$folder/log" 2>&1 &
  server=$!
  for _ in $(seq 300); do
    if (: < "/dev/tcp/$host/$port") 2>/dev/null; then
      export TINSMITH_S3="http://tinsmith:of-the-tests@$host:$port/$bucket"
      break 2
    fi
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
  done
done
if [ -z "${TINSMITH_S3:-}" ]; then
  cat "$folder/log"
  echo "minio.sh: MinIO did not start"
  exit 1
fi
"$@"
