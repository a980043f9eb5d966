package cudart

/*
#include "driver.h"
*/
import "C"

import (
	"errors"
	"unsafe"
)

// Outer products by groups of rows are a module of their own (kernels/outer_group.cu), for Hopper, which is loaded when it is asked for. Their arithmetic is another one than that of OuterProducts. Nobody has run them on a GPU yet:
// CheckOuterGroups says what they give there.

// outerModule is their file.
const outerModule = "sm_90a_outer"

// kOuterGroup is the number of the kernel, behind those of attention by warpgroups.
const kOuterGroup = kGroupAttention + 8

// outerGroupRows is how many rows a group has at most.
const outerGroupRows = 16

// Places for groups in shared memory, with 16 of the narrow side and 256 of the wide one, each filled up by 4.
var outerGroupKernels = []kernel{{"outer_group", 128, 4 * 4 * outerGroupRows * (16 + 4 + 256 + 4)}}

// UseOuterGroups compiles the kernel of OuterGroups, which can be used from then on. Only devices whose Information has Warpgroups can.
func (v *Device) UseOuterGroups() error {
	if v.c == nil {
		return errClosed
	}
	if v.outerGroups {
		return nil
	}
	text, err := module(outerModule)
	if err == nil {
		err = v.loadModule(4, outerModule, text, kOuterGroup, outerGroupKernels)
	}
	v.outerGroups = err == nil
	return err
}

// OuterGroupsLoaded says whether the device can use OuterGroups.
func (v *Device) OuterGroupsLoaded() bool { return v.outerGroups }

// OuterGroupJob is an OuterProduct whose rows stand at positions of sequences: a sequence's rows are beside each other at ascending positions, and another one begins at position 0. Groups of rows begin at multiples of 16. The rows
// apart begin with a group of their own.
type OuterGroupJob struct {
	OuterProduct
	Positions []int32
}

// OuterGroups runs all jobs in one launch. No two may have a G in common. An element is a chain over groups of rows (kernels/outer_group.cu): its bits are those of any cut between groups.
func (v *Device) OuterGroups(jobs []OuterGroupJob) error {
	var tiles []C.outer_tile
	var groups []C.outer_rows
	list := make([]C.outer_group_job, len(jobs))
	type span struct{ from, count, apart int }
	where := make([]span, len(jobs))
	for k, j := range jobs {
		if j.A.Rows == 0 {
			continue
		}
		if k > 0 && sameRows(jobs[k-1], j) {
			where[k] = where[k-1]
		} else {
			where[k].from = len(groups)
			groups = appendGroups(groups, j.Positions, 0, j.A.Rows-j.Apart)
			first := len(groups)
			groups = appendGroups(groups, j.Positions, j.A.Rows-j.Apart, j.A.Rows)
			where[k].count, where[k].apart = len(groups)-where[k].from, len(groups)-first
		}
		list[k] = C.outer_group_job{g: j.G.c(), a: j.A.c(), b: j.B.c(), count: C.int32_t(where[k].count), apart: C.int32_t(where[k].apart), first: flag(j.First)}
		tiles = outerGroupTiles(tiles, k, min(j.G.Rows, j.G.Cols), max(j.G.Rows, j.G.Cols))
	}
	if len(tiles) == 0 {
		return nil
	}
	// The list of jobs names that of groups, so the groups are put first.
	rows, releaseRows, err := v.Put(bytesOf(groups))
	if err != nil {
		return err
	}
	for k := range list {
		list[k].groups = C.uint64_t(rows) + C.uint64_t(where[k].from)*C.sizeof_outer_rows
	}
	at, release, err := v.putAll(bytesOf(list), bytesOf(tiles))
	if err != nil {
		return errors.Join(err, releaseRows())
	}
	a := C.outer_arguments{jobs: C.uint64_t(at[0]), tiles: C.uint64_t(at[1])}
	return errors.Join(v.launch(kOuterGroup, int64(len(tiles)), 1, 1, bytesIn(&a)), release(), releaseRows())
}

// sameRows says whether two jobs have the same rows of a batch.
func sameRows(a, b OuterGroupJob) bool {
	return a.A.Rows == b.A.Rows && a.Apart == b.Apart && len(a.Positions) > 0 && unsafe.SliceData(a.Positions) == unsafe.SliceData(b.Positions)
}

// appendGroups appends the groups of rows [from, to).
func appendGroups(groups []C.outer_rows, positions []int32, from, to int64) []C.outer_rows {
	for at := from; at < to; {
		n := int64(1)
		for at+n < to && positions[at+n] == positions[at]+int32(n) && positions[at+n]%outerGroupRows != 0 {
			n++
		}
		groups = append(groups, C.outer_rows{first: C.int32_t(at), count: C.int32_t(n)})
		at += n
	}
	return groups
}

// outerGroupTiles appends the tiles of a job whose g has these sides: of the narrow one 32 each and at its end 16 where no more are left, of the wide one as many as make outerTile elements.
func outerGroupTiles(tiles []C.outer_tile, job int, narrow, wide int64) []C.outer_tile {
	const outerTile = 4096
	for n := int64(0); n < narrow; {
		power := 5
		if narrow-n <= 16 {
			power = 4
		}
		for w := int64(0); w < wide; w += outerTile >> power {
			tiles = append(tiles, C.outer_tile{job: C.int32_t(job), narrow: C.int32_t(n), wide: C.int32_t(w), power: C.int32_t(power)})
		}
		n += 1 << power
	}
	return tiles
}
