package cpu_test

import (
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/optest"
)

// TestE4M3 is for every instruction set: they expand numbers of eight bits in ways of their own.
func TestE4M3(t *testing.T) {
	for _, isa := range cpu.ISAs() {
		t.Run(isa, func(t *testing.T) { optest.RunE4M3(t, open(t, cpu.Options{ISA: isa, Threads: 2})) })
	}
}
