#!/bin/bash
# Succeeds when /healthz of the server in this container answers 200. Bash opens the connection itself: the image has no HTTP client.
set -euo pipefail
exec 3<> /dev/tcp/127.0.0.1/8000
printf 'GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n' >&3
read -r _ status _ <&3
[ "$status" = 200 ]
