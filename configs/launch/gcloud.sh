#!/bin/bash
# gcloud.sh start NAME [options]   makes or starts a machine of Google Cloud with a GPU, puts the container onto it, prints the address and the key
# gcloud.sh tunnel NAME [--port N] leads 127.0.0.1:N here to the server there, until ctrl-C
# gcloud.sh key NAME               prints the key of the first start again
# gcloud.sh new-key NAME           makes another key of an administrator's and prints it
# gcloud.sh stop NAME              ends the container and stops the machine; its disk stays, with all data, and costs
# gcloud.sh delete NAME            deletes the machine and its disk, after a question
#
# Options: --zone ZONE (default us-central1-a), --project PROJECT (default gcloud's), --machine TYPE (default g2-standard-8, with one L4; a2-highgpu-1g has an A100, a3-highgpu-1g an H100), --disk-gb N (default 200),
# --hours N (the machine stops by itself after so long; default 12, 0: never), --family NAME (of the image with driver and docker; `gcloud compute images list --project deeplearning-platform-release` lists them), and --image, --pull,
# --config, --port and HF_TOKEN as ssh.sh has them.
# The project has a quota for the GPU, and gcloud is logged in. The machine gets no service account, and no port of it is opened but ssh's. DRY_RUN=1 prints every command and runs none.
set -euo pipefail
# shellcheck source=configs/launch/container.sh
source "$(dirname "$0")/container.sh"

[ $# -ge 2 ] || fail "start, tunnel, key, new-key, stop or delete, and a NAME; see the head of $0"
verb=$1 name=$2
shift 2
zone=us-central1-a project='' type=g2-standard-8 disk=200 hours=12 family=common-cu128-ubuntu-2204-nvidia-570
checked NAME "$name" '[a-z]([a-z0-9-]{0,61}[a-z0-9])?'
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || fail "$1 needs a value"
  case $1 in
    --zone) checked "$1" "$2" '[a-z0-9-]+'; zone=$2 ;;
    --project) checked "$1" "$2" '[a-z][a-z0-9:.-]+'; project=$2 ;;
    --machine) checked "$1" "$2" '[a-z0-9-]+'; type=$2 ;;
    --disk-gb) checked "$1" "$2" '[0-9]{2,5}'; disk=$2 ;;
    --hours) checked "$1" "$2" '[0-9]{1,4}'; hours=$2 ;;
    --family) checked "$1" "$2" '[a-z0-9-]+'; family=$2 ;;
    *) common "$1" "$2" ;;
  esac
  shift 2
done

where=(--zone "$zone" ${project:+--project "$project"})
machine() { gcloud compute ssh "$name" "${where[@]}" --quiet --command "$1"; }
machine_words() { quoted gcloud compute ssh "$name" "${where[@]}" --quiet --command "$1"; }

# there_is tells whether the machine has been made. A dry run supposes that it has not.
there_is() {
  if [ -n "${DRY_RUN:-}" ]; then
    say "gcloud compute instances describe $name ${where[*]}"
    return 1
  fi
  gcloud compute instances describe "$name" "${where[@]}" --format 'value(name)' >/dev/null 2>&1
}

# reachable waits until the machine takes ssh, ten minutes at most.
reachable() {
  if [ -n "${DRY_RUN:-}" ]; then
    there true
    return
  fi
  for _ in $(seq 60); do
    if machine true </dev/null >/dev/null 2>&1; then return; fi
    sleep 10
  done
  fail "$name does not take ssh after ten minutes; it is still rented: $0 stop $name"
}

case $verb in
  start)
    if there_is; then
      do_it gcloud compute instances start "$name" "${where[@]}"
    else
      limit=()
      [ "$hours" = 0 ] || limit=(--max-run-duration "${hours}h" --instance-termination-action STOP)
      do_it gcloud compute instances create "$name" "${where[@]}" --machine-type "$type" --maintenance-policy TERMINATE --image-project deeplearning-platform-release --image-family "$family" --metadata install-nvidia-driver=True \
        --boot-disk-size "${disk}GB" --boot-disk-type pd-balanced --no-service-account --no-scopes --labels made-by=tinsmith ${limit[@]+"${limit[@]}"}
    fi
    reachable
    container_start
    echo "address: http://127.0.0.1:$port while this runs: $0 tunnel $name --zone $zone${project:+ --project $project} --port $port"
    container_key
    echo "stop:    $0 stop $name --zone $zone${project:+ --project $project}   (until then it costs)"
    ;;
  tunnel) do_it gcloud compute ssh "$name" "${where[@]}" -- -N -o ExitOnForwardFailure=yes -L "127.0.0.1:$port:127.0.0.1:8000" ;;
  key) container_key ;;
  new-key) container_new_key ;;
  stop)
    container_stop || echo "${0##*/}: the container had not been running; the machine is stopped all the same" >&2
    do_it gcloud compute instances stop "$name" "${where[@]}"
    ;;
  delete) do_it gcloud compute instances delete "$name" "${where[@]}" ;;
  *) fail "'$verb' is none of start, tunnel, key, new-key, stop, delete" ;;
esac
