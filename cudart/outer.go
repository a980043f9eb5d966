package cudart

/*
#include "driver.h"
*/
import "C"

import (
	"errors"
	"unsafe"
)

// OuterProduct is one job of OuterProducts: G += Aᵀ · B, summed over the rows in ascending order from what G holds or, with First, from zero; there are then rows. The last Apart rows are a chain of their own
// from zero, whose sum is added to G behind the others'.
type OuterProduct struct {
	G, A, B View
	First   bool
	Apart   int64
}

const (
	_ = uint(unsafe.Sizeof(OuterProduct{}) - C.sizeof_outer_product_job)
	_ = uint(C.sizeof_outer_product_job - unsafe.Sizeof(OuterProduct{}))
)

// OuterProducts runs all jobs in one launch. No two may have a G in common.
func (v *Device) OuterProducts(jobs []OuterProduct) error {
	var tiles []C.outer_tile
	for k, j := range jobs {
		if j.A.Rows > 0 {
			tiles = outerTiles(tiles, k, min(j.G.Rows, j.G.Cols), max(j.G.Rows, j.G.Cols))
		}
	}
	if len(tiles) == 0 {
		return nil
	}
	at, release, err := v.putAll(bytesOf(jobs), bytesOf(tiles))
	if err != nil {
		return err
	}
	a := C.outer_arguments{jobs: C.uint64_t(at[0]), tiles: C.uint64_t(at[1])}
	return errors.Join(v.launch(kOuterProduct, int64(len(tiles)), 1, 1, bytesIn(&a)), release())
}

// outerTiles appends the tiles of a job whose g has these sides: of the narrow one, an adapter's rank, 32 each and at its end no more than twice what is left, or 8; of the wide one as many as make outerTile elements.
func outerTiles(tiles []C.outer_tile, job int, narrow, wide int64) []C.outer_tile {
	const outerTile = 4096
	for n := int64(0); n < narrow; {
		power := 5
		for power > 3 && narrow-n <= 1<<(power-1) {
			power--
		}
		for w := int64(0); w < wide; w += outerTile >> power {
			tiles = append(tiles, C.outer_tile{job: C.int32_t(job), narrow: C.int32_t(n), wide: C.int32_t(w), power: C.int32_t(power)})
		}
		n += 1 << power
	}
	return tiles
}
