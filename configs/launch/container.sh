#!/bin/bash
# What gcloud.sh and ssh.sh have in common: how the container comes onto a machine, and starts and ends there. They define `machine COMMAND`, which runs a shell command there with its own standard input, and `machine_words COMMAND`, which
# prints how.
# Nothing is installed on the machine but the container: it has docker and, for GPUs, NVIDIA's driver and container toolkit. What is secret goes through standard input and files that only their owner reads, never as an argument, which
# everybody on a machine can see.
# shellcheck disable=SC2016,SC2034 # the variables in commands are the machine's, and port is for the scripts

image=tinsmith:cuda pull='' config='' port=8000

fail() {
  echo "${0##*/}: $*" >&2
  exit 1
}

# checked WHAT VALUE PATTERN refuses what a shell or a program could read as something else.
checked() {
  [[ $2 =~ ^$3$ ]] || fail "$1: '$2' is not allowed"
}

# quoted prints words as one could type them.
quoted() {
  local word out=''
  for word in "$@"; do
    if [[ $word =~ ^[a-zA-Z0-9_./:=@,+-]+$ ]]; then out+=" $word"; else out+=" '${word//\'/\'\\\'\'}'"; fi
  done
  printf '%s' "${out# }"
}

# say prints a command.
say() { printf '+ %s\n' "$*"; }

# do_it COMMAND… runs a command of this machine, or prints it when DRY_RUN is set.
do_it() {
  if [ -n "${DRY_RUN:-}" ]; then say "$(quoted "$@")"; else "$@"; fi
}

# there COMMAND [WHAT] runs a command on the machine, or prints it. Its input is nothing, or what the local command WHAT writes.
there() {
  if [ -n "${DRY_RUN:-}" ]; then
    say "${2:+$2 | }$(machine_words "$1")"
  elif [ -n "${2:-}" ]; then
    eval "$2" | machine "$1"
  else
    machine "$1" </dev/null
  fi
}

# In every command on the machine: docker, as root where its user may not.
docker='d=docker; docker info >/dev/null 2>&1 || d="sudo -n docker"; '

# common OPTION VALUE takes the options that both scripts have.
common() {
  case $1 in
    --image) checked "$1" "$2" '[a-zA-Z0-9][a-zA-Z0-9._/:@-]*'; image=$2 ;;
    --pull) checked "$1" "$2" '[a-zA-Z0-9][a-zA-Z0-9._/:@-]*'; pull=yes image=$2 ;;
    --config) [ -r "$2" ] || fail "$1: '$2' cannot be read"; config=$2 ;;
    --port)
      checked "$1" "$2" '[1-9][0-9]{0,4}'
      [ "$2" -le 65535 ] || fail "$1: '$2' is not allowed"
      port=$2
      ;;
    *) fail "unknown option $1; see the head of $0" ;;
  esac
}

# container_start brings the image and starts it. Its data stay in a volume, from one start to the next.
container_start() {
  there "$docker"'$d info >/dev/null 2>&1 || { echo "this machine has no docker that its user may use" >&2; exit 1; }'
  if [ -n "$pull" ]; then
    there "$docker\$d pull --quiet $image"
  else
    there "$docker"'gunzip | $d load' "docker save $image | gzip"
  fi
  local more=''
  local environment=:
  if [ -n "${HF_TOKEN:-}" ]; then
    [[ $HF_TOKEN =~ ^[a-zA-Z0-9_.-]+$ ]] || fail "HF_TOKEN has characters that no token has"
    environment='printf "HF_TOKEN=%s\n" "$HF_TOKEN"'
  fi
  there 'rm -f .tinsmith.env; umask 077; cat > .tinsmith.env' "$environment"
  if [ -n "$config" ]; then
    there 'cat > .tinsmith.yaml && chmod 644 .tinsmith.yaml' "cat -- $(quoted "$config")"
    more=' --volume "$HOME/.tinsmith.yaml:/opt/tinsmith/configs/container.yaml:ro"'
  fi
  # The name is free, GPUs are taken where there are some, and only the machine itself reaches the port.
  there "$docker"'$d stop -t 60 tinsmith >/dev/null 2>&1; $d rm --force tinsmith >/dev/null 2>&1; gpus=; if command -v nvidia-smi >/dev/null && nvidia-smi >/dev/null 2>&1; then gpus="--gpus all"; fi; '"\$d run --detach --name tinsmith --restart unless-stopped --stop-timeout 60 \$gpus --publish 127.0.0.1:8000:8000 --volume tinsmith:/opt/tinsmith/data --env HF_HOME=/opt/tinsmith/data/huggingface --env-file .tinsmith.env$more $image >/dev/null"
  there "$docker"'for i in $(seq 120); do s=$($d inspect --format "{{.State.Health.Status}}" tinsmith); [ "$s" != healthy ] || exit 0; sleep 5; done; $d logs --tail 20 tinsmith >&2; echo "it is not ready after ten minutes; it may still be downloading or loading a model" >&2'
}

# container_key prints the key that the container made at its first start. The log of a later start does not have it.
container_key() {
  there "$docker"'k=$($d logs tinsmith 2>&1 | sed -n "s/^API key (.*): //p" | tail -n 1); echo "key:     ${k:-that of the first start; \"new-key\" makes another}"'
}

# container_new_key makes another key of an administrator's.
container_new_key() {
  there "$docker"'echo "key:     $($d exec tinsmith tinsmith key add "launch-$(date +%s)" --admin --file /opt/tinsmith/data/keys)"'
}

container_stop() {
  there "$docker"'$d stop -t 60 tinsmith >/dev/null && $d rm tinsmith >/dev/null'
}
