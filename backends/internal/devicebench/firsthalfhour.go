package main

// firstHalfHour stands before the flags in -help: what to run first on a machine that is lent for 30 minutes and takes commands of 10 minutes at most.
const firstHalfHour = `devicebench runs tests and measurements on the NVIDIA GPUs of this machine and writes a report; with -predict it tells what a GPU is expected
to do.

The first half hour on a lent machine. Prepare all calls before the first: a machine that idles is taken back. Here, once: make devicebench
(programs, stripped and compressed, in bin/devicebench; they need nothing but the C library). There, in the repository's root, each call below 10 minutes; models lie
in /tmp/models from the second call on, and each call leaves its report behind, whatever ends it:

  export B="bin/devicebench/start -work /tmp/models -report $OUT" CUDA_CACHE_PATH=/tmp/nv
  ($B/1.md is a call with the report $OUT/1.md; start unpacks the programs when it is first called, and hands its arguments on)

  1. about 4 min   timeout 420 $B/1.md -only 0.6B-bits,operations -step-timeout 200s
     Does it run? Errors of the driver first; then four comparisons of bits, and every operation. A failure that moves from run to run is a race: go to 6.
  2. about 4 min   timeout 420 $B/2.md -only products -step-timeout 200s
     Are products by warpgroups equal to those by warps; what do they reach; is cuBLASLt equal and faster; launches that decoding shares.
  3. about 5 min   timeout 480 $B/3.md -only 8B-speed -kernels -step-timeout 400s
     Tokens a second, MFU, share of a copy's speed, and time by kernel beside what is predicted. The head says which arithmetic and
     products it was: without warpgroups everything else is beside the point.
  4. about 2 min   timeout 240 $B/4.md -only 0.6B-speed -kernels -step-timeout 200s
  5. about 6 min   timeout 580 $B/5.md -only 30B-A3B-speed,Qwen3.5-speed,gpt-oss-speed -kernels -step-timeout 190s
  6. what is left  timeout 580 $B/6.md -only models,contract,gradients -step-timeout 240s; last -only sanitizer -step-timeout 9m

That is about 21 minutes with the start. An H200 has room for all of 3; an H100 computes activations of 8B again or takes shorter passes, which the report says.
`
