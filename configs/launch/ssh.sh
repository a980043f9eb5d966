#!/bin/bash
# ssh.sh start HOST [--image NAME | --pull NAME] [--config FILE] [--port N]   puts the container onto a machine, prints the address and the key
# ssh.sh tunnel HOST [--port N]   leads 127.0.0.1:N here to the server there, until ctrl-C
# ssh.sh key HOST                 prints the key of the first start again
# ssh.sh new-key HOST             makes another key of an administrator's and prints it
# ssh.sh stop HOST                ends the container; its data stay
# ssh.sh poweroff HOST            ends the container and switches the machine off; whether it then costs nothing is for who rents it out to say
#
# HOST is what ssh takes, as [user@]name, with what ~/.ssh/config says of it. The machine has docker and, for GPUs, NVIDIA's driver and container toolkit. --image is an image of this machine's docker (default tinsmith:cuda, made by
# `docker build -t tinsmith:cuda --target cuda .`), which is sent; --pull is one that the machine fetches itself. --config replaces configs/container.yaml. HF_TOKEN, if it is set, goes along for gated models.
# The server listens on the machine itself only: a tunnel brings what is sent, and the key, there encrypted. DRY_RUN=1 prints every command and runs none.
set -euo pipefail
# shellcheck source=configs/launch/container.sh
source "$(dirname "$0")/container.sh"

[ $# -ge 2 ] || fail "start, tunnel, key, new-key, stop or poweroff, and a HOST; see the head of $0"
verb=$1 host=$2
shift 2
checked HOST "$host" '([a-zA-Z0-9_][a-zA-Z0-9._-]*@)?[a-zA-Z0-9][a-zA-Z0-9.:_-]*'
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || fail "$1 needs a value"
  common "$1" "$2"
  shift 2
done

# shellcheck disable=SC2029 # it is this side that knows what is in the command
machine() { ssh "$host" "$1"; }
machine_words() { quoted ssh "$host" "$1"; }

case $verb in
  start)
    container_start
    echo "address: http://127.0.0.1:$port while this runs: $0 tunnel $host --port $port"
    container_key
    ;;
  tunnel) do_it ssh -N -o ExitOnForwardFailure=yes -L "127.0.0.1:$port:127.0.0.1:8000" "$host" ;;
  key) container_key ;;
  new-key) container_new_key ;;
  stop) container_stop ;;
  poweroff)
    container_stop
    there 'sudo -n poweroff'
    ;;
  *) fail "'$verb' is none of start, tunnel, key, new-key, stop, poweroff" ;;
esac
