package ordeal

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"syscall"
)

// heapVariable names a folder: at every SIGUSR1 the gateway under test writes there what its heap holds, for `go tool pprof -diff_base`.
const heapVariable = "TINSMITH_TEST_HEAP"

// profileOnSignal starts that, if it is wished.
func profileOnSignal() {
	dir := os.Getenv(heapVariable)
	if dir == "" {
		return
	}
	runtime.MemProfileRate = 8 << 10 // a sixty-fourth of the usual one: what a client leaves behind is small
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1)
	go func() {
		for n := 1; ; n++ {
			<-asked
			if err := writeHeapProfile(filepath.Join(dir, fmt.Sprintf("heap-%02d.pb.gz", n))); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
	}()
}

func writeHeapProfile(path string) error {
	runtime.GC() // the profile is as of the last collection
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := pprof.Lookup("heap").WriteTo(f, 0); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
