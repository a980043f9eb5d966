// Command tinsmith is the gateway: it serves the Tinker API and the OpenAI API over backend plugins.
package main

import (
	"os"

	"github.com/tinsmith/tinsmith/gateway/internal/cmd"
)

// version is set when the program is built.
var version = "devel"

func main() {
	os.Exit(cmd.Main(version))
}
