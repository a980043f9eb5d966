//go:build ignore

// unpack writes what is compressed by zstd in its standard input to its standard output, where there is no program zstd (make.sh).
package main

import (
	"io"
	"log"
	"os"

	"github.com/klauspost/compress/zstd"
)

func main() {
	r, err := zstd.NewReader(os.Stdin)
	if err == nil {
		_, err = io.Copy(os.Stdout, r)
	}
	if err != nil {
		log.Fatal(err)
	}
}
