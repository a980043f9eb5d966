#!/bin/bash
# generated.sh checks that the generated protobuf code is what its .proto files give and the PTX what the kernels give; `generated.sh write` writes the protobuf code anew
# (make kernels the PTX).
# protoc comes from PyPI's grpcio-tools into .tools/protoc, the Go plugins from their modules into .tools; all pinned, once per version.
# PYTHON names the interpreter (default python3.11).
set -euo pipefail
cd "$(dirname "$0")/.."

grpcio_tools=1.85.1
gen_go_grpc=v1.6.2  # protoc-gen-go has the version that go.mod gives to google.golang.org/protobuf
gen_go=$(go list -m -f '{{.Version}}' google.golang.org/protobuf)
files="plugins/backendpb/backend.proto plugins/backendpb/remote.proto gateway/internal/tinker/wire/tinkerpb/tinker_public.proto"

case ${1:-check} in check | write) ;; *) echo "usage: e2e/generated.sh [check|write]" >&2; exit 2 ;; esac

protoc=.tools/protoc/bin/python
stamp=.tools/protoc/version
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$grpcio_tools" ]; then
  python=${PYTHON:-python3.11}
  command -v "$python" >/dev/null || { echo "generated.sh: $python is not installed (set PYTHON to name another)" >&2; exit 1; }
  echo "installing grpcio-tools $grpcio_tools into .tools/protoc (about 4 MB)"
  rm -rf .tools/protoc
  "$python" -m venv .tools/protoc
  "$protoc" -m pip install --quiet --disable-pip-version-check --only-binary :all: --no-deps "grpcio-tools==$grpcio_tools"
  echo "$grpcio_tools" > "$stamp"
fi
# go_plugin NAME VERSION PACKAGE
go_plugin() {
  [ "$(.tools/"$1" --version 2>/dev/null | grep -o '[0-9.]*$')" != "${2#v}" ] || return 0
  echo "installing $1 $2 into .tools (Go module)"
  GOBIN=$PWD/.tools go install "$3@$2"
}
go_plugin protoc-gen-go "$gen_go" google.golang.org/protobuf/cmd/protoc-gen-go
go_plugin protoc-gen-go-grpc "$gen_go_grpc" google.golang.org/grpc/cmd/protoc-gen-go-grpc

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
differ=0
for file in $files; do
  folder=$(dirname "$file") name=$(basename "$file" .proto)
  out=$made/$name
  mkdir "$out"
  PATH=$PWD/.tools:$PATH "$protoc" -m grpc_tools.protoc -I "$folder" --go_out="$out" --go_opt=paths=source_relative \
    --go-grpc_out="$out" --go-grpc_opt=paths=source_relative "$name.proto"
  for new in "$out"/*.go; do
    old=$folder/$(basename "$new")
    if [ "${1:-check}" = write ]; then
      cp "$new" "$old"
    elif ! diff -u "$old" "$new" > "$made/diff"; then
      head -n 20 "$made/diff"
      echo "generated.sh: $old is not what $file gives: run e2e/generated.sh write" >&2
      differ=1
    fi
  done
done
[ "${1:-check}" = write ] || [ "$differ" = 1 ] || echo "check: generated code is up to date"
[ "${1:-check}" = write ] || cudart/kernels/make.sh check || differ=1
exit "$differ"
