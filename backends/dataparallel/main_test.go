package main

import (
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/programtest"
)

func TestMain(m *testing.M) {
	open = programtest.Faulty(open)
	programtest.Main(m, main)
}

func TestProgram(t *testing.T) {
	for name, config := range map[string]string{
		"copies":             `{"plugin": "dataparallel", "devices": ["cpu", "cpu"]}`,
		"weights shared out": `{"plugin": "dataparallel", "devices": ["cpu", "cpu"], "shard_base": true}`,
	} {
		t.Run(name, func(t *testing.T) {
			programtest.Run(t, programtest.Program{Name: "dataparallel", Config: config, Device: "cpu + cpu"})
		})
	}
}
