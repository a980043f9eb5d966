#!/bin/sh
# secrets.sh FOLDER makes what the services of compose.yaml know each other by, unless it is there: the password of the database, alone and in its address, and Grafana's. Each service has a user of its own, and all read the folder,
# which nothing else is given.
set -eu
folder=$1
mkdir -p "$folder"
random() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }

# keep NAME writes what comes in to a file that appears whole.
keep() {
  cat > "$folder/.$1"
  chmod 444 "$folder/.$1"
  mv "$folder/.$1" "$folder/$1"
}
[ -s "$folder/postgres" ] || random | keep postgres
[ -s "$folder/grafana" ] || random | keep grafana
printf 'postgres://tinsmith:%s@postgres:5432/tinsmith?sslmode=disable\n' "$(cat "$folder/postgres")" | keep postgres-url
