//go:build !race

package simulation

// race tells whether the race detector watches, which makes everything many times slower.
const race = false
