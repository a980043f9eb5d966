#!/bin/bash
# postgres.sh COMMAND… runs a command with TINSMITH_POSTGRES set to the database of a PostgreSQL server of its own, which ends with the command.
# It needs what e2e/python.sh installs. Where TINSMITH_POSTGRES is set already, that database is used. If the server does not start, that is said
# and the command runs without: tests that need it skip. TINSMITH_TEST_LISTEN is the address where it listens, if that is not loopback's.
set -uo pipefail
cd "$(dirname "$0")/.."
[ -z "${TINSMITH_POSTGRES:-}" ] || exec "$@"

folder=$(mktemp -d "${TMPDIR:-/tmp}/tinsmith-postgres-XXXXXX")
programs=$folder/pgserver/pginstall/bin data=$folder/data host=${TINSMITH_TEST_LISTEN:-127.0.0.1}
# The server does not run as root, and the clone may be where nobody else looks.
as_other=()
[ "$(id -u)" != 0 ] || as_other=(setpriv --reuid=nobody --regid=nogroup --clear-groups)
server() { "${as_other[@]}" env -i PATH="$PATH" LC_ALL=C "$programs/$1" "${@:2}"; }
end() {
  [ ! -e "$data/postmaster.pid" ] || server pg_ctl stop --pgdata "$data" --mode immediate --silent --wait
  rm -rf "$folder"
}
trap end EXIT
trap 'exit 130' INT TERM

start() {
  cp -r .cache/postgres/pgserver* "$folder" || return 1 # the programs find their libraries beside them
  chmod -R a+rX "$folder" && chmod a+x "$programs"/* && mkdir "$data" || return 1
  [ "$(id -u)" != 0 ] || chown nobody:nogroup "$folder" "$data" || return 1
  server initdb --pgdata "$data" --username tinsmith --auth trust --encoding UTF8 --no-sync > "$folder/initdb.log" 2>&1 || { cat "$folder/initdb.log"; return 1; }
  echo "host all all samenet trust" >> "$data/pg_hba.conf"
  # Without fsync: no test is about a database's machine that loses its power.
  local port
  for port in $(shuf -i 20000-29999 -n 5); do
    if server pg_ctl start --pgdata "$data" --log "$data/log" --silent --wait --options "-h $host -p $port -k '' -c fsync=off -c max_connections=200" > "$folder/start.log" 2>&1; then
      export TINSMITH_POSTGRES="postgres://tinsmith@$host:$port/postgres?sslmode=disable"
      return 0
    fi
  done
  cat "$folder/start.log" "$data/log"
  return 1
}
start || echo "postgres.sh: PostgreSQL did not start, so what needs it is skipped"
"$@"
