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
	programtest.Run(t, programtest.Program{Name: "tensorparallel", Config: `{"plugin": "tensorparallel", "devices": ["cpu", "cpu"]}`, Device: "cpu|cpu"})
}
