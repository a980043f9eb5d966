//go:build race

package ordeal

// raced tells that these programs were built with the race detector, which takes several times the memory and the processor.
const raced = true
