// Command transformers is the backend plugin for models that no other plugin has an architecture for: it drives a Python process with Hugging Face transformers. The gateway starts it.
package main

import (
	"github.com/tinsmith/tinsmith/backends/internal/transformers"
	"github.com/tinsmith/tinsmith/plugins"
)

// version is set when a release is built.
var version = "development"

func main() {
	plugins.Serve(transformers.New(transformers.Options{Version: version}))
}
