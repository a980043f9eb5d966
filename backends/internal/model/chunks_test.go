package model

import "testing"

// Chunks of logits are of whole tiles, as large as memory allows, and of nearly equal size.
func TestChunksOfLogits(t *testing.T) {
	const columns = 151936
	for _, c := range []struct {
		name  string
		bytes int
		tiles []int
		rows  int // of a pass
		most  int // of a chunk by the memory
		even  int // of a chunk of the pass
	}{
		{"a processor", 256 << 20, tileRows, 4096, 432, 420},
		{"an H200", 2 << 30, remoteTileRows, 4096, 3456, 2048},
		{"an H100", 1474 << 20, remoteTileRows, 4096, 2432, 2048},
		{"a smaller one", 440 << 20, remoteTileRows, 4096, 640, 640},
		{"the least", 256 << 20, remoteTileRows, 4096, 384, 384},
		{"hardly more than a chunk", 256 << 20, remoteTileRows, 390, 384, 256},
		{"few rows", 2 << 30, remoteTileRows, 5, 3456, 3456},
		{"less than a tile", 64 << 20, remoteTileRows, 200, 96, 80},
		{"less than the smallest tile", 5 << 20, remoteTileRows, 200, 8, 8},
		{"a row", 1, remoteTileRows, 3, 1, 1},
	} {
		most := chunkRows(c.bytes, columns, c.tiles)
		if most != c.most {
			t.Errorf("%s: chunks of %d rows at most, want %d", c.name, most, c.most)
		}
		if got := evenChunks(c.rows, most, c.tiles); got != c.even {
			t.Errorf("%s: chunks of %d rows for %d, want %d", c.name, got, c.rows, c.even)
		}
	}
}
