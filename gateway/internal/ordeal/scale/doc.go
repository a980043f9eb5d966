// Package scale has no code of its own: it measures what a pool of many backends costs the gateway. Thousands of runs train and sample on up to 512 fake backends through the gateway's core and a real store. Time is virtual, so that a
// backend's time on its device is only waited for; what is measured is the processor's time of this process.
//
//	go test ./gateway/internal/ordeal/scale -run TestCost -v -timeout 1h -full
//
// prints it for 1, 8, 64 and 512 backends and 10,000 runs. The same cost for each says that nothing in the gateway looks at all backends for each operation; its inverse is how many operations a second one
// processor takes, whatever the number of backends.
package scale
