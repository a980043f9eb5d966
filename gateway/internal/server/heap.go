package server

// ballastBytes is what the heap seems to hold at least while the server serves.
const ballastBytes = 32 << 20

// ballast is memory that is never touched, so that the machine gives none for it, and that the garbage collector counts. What a gateway holds is a few MB while it answers thousands of
// requests a second, and the collector runs whenever as much again was allocated: dozens of times a second, for a tenth of the processor time of a request. Over the ballast it waits for
// 32 MiB more than that, however much the gateway holds.
func ballast() []byte { return make([]byte, ballastBytes) }
