#!/bin/bash
# dist.sh FOLDER VERSION IMAGE ARCHITECTURE… makes what a release holds: for each architecture (amd64, arm64) an archive for Linux with the gateway, the plugins, the built-in model, the configurations
# and every licence, and the checksums of all; the container image too where docker runs, unless IMAGE is "no". It is called by `make dist`, which sets the flags of the Go commands.
# An archive runs where glibc is at least as new as on this machine, which needs a C compiler for each architecture: on Debian gcc, and gcc-aarch64-linux-gnu for arm64.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1 version=$2 image=$3
shift 3
native=$(go env GOARCH)

compiler() {
  case $1 in
    "$native") echo "${CC:-gcc}" ;;
    arm64) echo aarch64-linux-gnu-gcc ;;
    amd64) echo x86_64-linux-gnu-gcc ;;
    *) echo "dist: architecture $1 is not one of amd64, arm64" >&2; return 2 ;;
  esac
}
for architecture in "$@"; do
  cc=$(compiler "$architecture")
  command -v "$cc" >/dev/null || {
    echo "dist: no $cc, which the plugins for $architecture need: install it (on Debian ${cc%-gcc} is of the package gcc-${cc%-gcc}), or make another one only, such as make dist ARCH=$native" >&2
    exit 1
  }
done

# licences FOLDER copies the licence of every module that the programs are built from.
licences() {
  go list -deps -f '{{with .Module}}{{if .Dir}}{{.Path}}@{{.Version}} {{.Dir}}{{end}}{{end}}' ./gateway ./backends/single ./backends/dataparallel ./backends/tensorparallel ./backends/transformers | sort -u | while read -r module dir; do
    [ "$dir" = "$PWD" ] && continue
    found=$(find "$dir" -maxdepth 1 -type f \( -iname 'licen[sc]e*' -o -iname 'copying*' -o -iname 'notice*' \) | sort)
    [ -n "$found" ] || { echo "dist: no licence in $module" >&2; return 1; }
    mkdir -p "$1/$module"
    while IFS= read -r file; do install -m 644 "$file" "$1/$module/"; done <<<"$found"
  done
  install -D -m 644 "$(go env GOROOT)/LICENSE" "$1/go/LICENSE"
}

mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
made=()
for architecture in "$@"; do
  name=tinsmith-$version-linux-$architecture
  to=$work/$name
  mkdir -p "$to/bin/plugins" "$to/configs/models"
  echo "dist: $name"
  CGO_ENABLED=0 GOARCH=$architecture go build -ldflags "-s -w -X main.version=$version" -o "$to/bin/tinsmith" ./gateway
  for plugin in single dataparallel tensorparallel transformers; do
    CGO_ENABLED=1 GOARCH=$architecture CC=$(compiler "$architecture") go build -ldflags "-s -w -X main.version=$version" -o "$to/bin/plugins/$plugin" "./backends/$plugin"
  done
  for config in default single dataparallel tensorparallel split gpus; do install -m 644 "configs/$config.yaml" "$to/configs/"; done
  cp -r configs/launch "$to/configs/"
  cp -r configs/models/tiny-chat "$to/configs/models/"
  rm -rf "$to/configs/models/tiny-chat/make"
  install -m 644 LICENSE README.md "$to/"
  [ ! -d docs ] || cp -r docs "$to/"
  licences "$to/licences"
  # The same files make the same archive.
  tar --sort=name --mtime="@$(git log -1 --format=%ct 2>/dev/null || echo 0)" --owner=0 --group=0 --numeric-owner --mode=u+w,go-w,a+rX -C "$work" -c "$name" | gzip -n -9 > "$folder/$name.tar.gz"
  made+=("$name.tar.gz")
done
if [ "$image" = no ]; then
  :
elif docker info >/dev/null 2>&1; then
  echo "dist: the container image tinsmith:$version"
  docker build --build-arg VERSION="$version" -t "tinsmith:$version" .
  docker save "tinsmith:$version" | gzip -n > "$folder/tinsmith-$version-image.tar.gz"
  made+=("tinsmith-$version-image.tar.gz")
else
  echo "dist: docker does not run on this machine, so no container image"
fi
(cd "$folder" && sha256sum "${made[@]}" > SHA256SUMS && ls -l "${made[@]}" SHA256SUMS)
