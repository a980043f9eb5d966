//go:build !race

package ordeal

const raced = false
