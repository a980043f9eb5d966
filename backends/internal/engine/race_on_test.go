//go:build race

package engine

// raced tells that these programs were built with the race detector, which takes several times the processor.
const raced = true
