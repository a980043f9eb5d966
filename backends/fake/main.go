// Command fake is the backend plugin for tests: a small but real model without C code, whose configuration can make it slow, fail or crash.
package main

import (
	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/plugintest/fake"
)

func main() {
	plugins.Serve(fake.New(fake.Options{}))
}
