// Command devicebench tries out the GPUs of a machine: it runs the tests that are for a device, compares bits and measures speed with random weights in the shapes of real models, and writes one report in Markdown.
// `make bench GPU=1` runs it, from the repository's root. It downloads nothing. Without a GPU it says why and fails;
// -predict needs none.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	if child() {
		return
	}
	o, err := parse()
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
		if o.Predict != nil {
			err = o.Predict.run(ctx, os.Stdout)
		} else {
			err = o.run(ctx)
		}
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "devicebench:", err)
		os.Exit(1)
	}
}
