package cudart

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// ClusterCheck is what CheckClusters found where all bits are equal: how long products of few rows with weights in blocks take by warps, and by clusters.
type ClusterCheck struct {
	Warps, Clusters time.Duration
}

// clusterCase is a launch of products of the same rows that CheckClusters computes in all ways: one for each of outs, with a tail so deep where that is not 0.
type clusterCase struct {
	rows, depth int64
	outs        []int64 // columns; multiples of BlockSide, as the depth is
	tails       []int64 // for each of outs
	tailType    Type
	accumulate  bool
}

func (c clusterCase) String() string {
	s := fmt.Sprintf("%d rows, columns %v, %d deep", c.rows, c.outs, c.depth)
	if c.tails != nil {
		s += fmt.Sprintf(", tails %v deep", c.tails)
	}
	if c.accumulate {
		s += ", accumulated"
	}
	return s
}

// clusterCases have rows that fill a tile and that do not, fewer than a cluster has blocks, clusters with one, two and three blocks without columns, inner
// axes of fewer and of more tiles than there are places, and a launch for all
// multiprocessors.
func (v *Device) clusterCases() []clusterCase {
	side := int64(v.multiprocessors)
	return []clusterCase{
		{rows: 1, outs: []int64{64}, depth: 256},
		{rows: 16, outs: []int64{192, 64, 128}, depth: 704, accumulate: true},
		{rows: 5, outs: []int64{320}, tails: []int64{5}, tailType: Float32, depth: 64},
		{rows: 17, outs: []int64{128, 64}, tails: []int64{16, 0}, tailType: BFloat16, depth: 832},
		{rows: 32, outs: []int64{192, 64}, tails: []int64{0, 64}, tailType: Float32, depth: 512, accumulate: true},
		{rows: 33, outs: []int64{448}, tails: []int64{32}, tailType: BFloat16, depth: 320},
		{rows: 64, outs: []int64{128, 320}, tails: []int64{8, 61}, tailType: Float32, depth: 576},
		{rows: 64, outs: []int64{BlockSide * side}, depth: 1024, accumulate: true},
	}
}

// CheckClusters computes products of random numbers by clusters, and with the same weights row by row by warps, and compares every bit; then it takes the
// times of products as decoding has them, with weights in blocks, both ways. Its error
// says what is not equal, or what failed: a kernel that faults makes the device useless, so a process that has something to lose lets another one check. The
// device can use weights in blocks afterwards, and does not use clusters.
func (v *Device) CheckClusters() (found ClusterCheck, err error) {
	if err := v.UseBulk(); err != nil {
		return found, err
	}
	random := rand.New(rand.NewPCG(20261130, 1))
	for _, c := range v.clusterCases() {
		if err := v.checkClusterCase(c, random); err != nil {
			return found, fmt.Errorf("products by clusters, %v: %w", c, err)
		}
	}
	return v.timeClusters(random)
}

func (v *Device) checkClusterCase(c clusterCase, random *rand.Rand) (err error) {
	o := operandsOf{v: v, random: random}
	defer func() { err = errors.Join(err, o.free()) }()
	x := o.rows(c.rows, c.depth, BFloat16)
	var rows, blocks []part
	var before [][]byte
	for i, out := range c.outs {
		y := View{Rows: c.rows, Cols: out, Stride: out + 2}
		before = append(before, randomBits(random, y.Rows*y.Stride, Float32))
		y.At = o.put(before[i])
		w := o.weight(out, c.depth)
		p := part{y: y, x: x, xType: BFloat16, columns: out, accumulate: c.accumulate}
		g := RowGroup{To: c.rows, Weight: w}
		if c.tails != nil && c.tails[i] > 0 {
			p.tail, g.tail = tailRows{o.rows(c.rows, c.tails[i], c.tailType), c.tailType}, o.weight(out, c.tails[i])
		}
		p.groups = []RowGroup{g}
		rows = append(rows, p)
		g.Weight = o.blocks(w)
		p.groups = []RowGroup{g}
		blocks = append(blocks, p)
	}
	// after gives what the results of parts are when they have been computed with a tile.
	after := func(parts []part, shape tile) (all [][]byte, err error) {
		for i, p := range parts {
			if _, err := o.result(p.y, before[i], nothing); err != nil {
				return nil, err
			}
		}
		if err := v.productsInTiles(parts, shape); err != nil {
			return nil, err
		}
		for i, p := range parts {
			data := make([]byte, len(before[i]))
			if err := v.Download(data, p.y.At, len(data), len(data), 1); err != nil {
				return nil, err
			}
			all = append(all, data)
		}
		return all, nil
	}
	want, err := after(rows, largestWarpTile(false))
	if err != nil {
		return err
	}
	for i := range clusterShapes {
		shape := clusterTile(i)
		if shape.rows < c.rows {
			continue
		}
		for range 1 + v.multiprocessors/16 { // what depends on time may be right once
			got, err := after(blocks, shape)
			if err != nil {
				return err
			}
			for k := range got {
				if !bytes.Equal(got[k], want[k]) {
					return fmt.Errorf("product %d, %s (%s)", k, firstDifference(blocks[k].y, got[k], want[k]), kernelOf(shape.kernel).name)
				}
			}
		}
	}
	return nil
}

// clusterRows are the numbers of rows whose products' times are taken.
var clusterRows = []int64{1, 16, 64}

// timeClusters takes the times of products of few rows with weights that are more than the second-level cache keeps: each time a product's comes from memory,
// as a layer's does.
func (v *Device) timeClusters(random *rand.Rand) (found ClusterCheck, err error) {
	o := operandsOf{v: v, random: random}
	defer func() { err = errors.Join(err, o.free()) }()
	const weights = 4
	devices := int64(v.multiprocessors)
	// Of 132 multiprocessors: 4,224 of each.
	columns, depth := (devices*32+BlockSide-1)/BlockSide*BlockSide, max(leastClusterDepth, devices*32/BlockSide*BlockSide)
	w := make([]Weight, weights)
	for i := range w {
		w[i] = o.blocks(o.weight(columns, depth))
	}
	use := v.clusters
	defer func() { v.clusters = use }()
	for _, rows := range clusterRows {
		x, y := o.rows(rows, depth, BFloat16), o.rows(rows, columns, Float32)
		if o.err != nil {
			return found, o.err
		}
		for _, way := range []struct {
			clusters bool
			to       *time.Duration
		}{{false, &found.Warps}, {true, &found.Clusters}} {
			v.clusters = way.clusters
			took, err := v.timed(func() error {
				for i := range w {
					if err := v.Product(y, x, BFloat16, []RowGroup{{To: rows, Weight: w[i]}}, BFloat16Blocks, false, false); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return found, err
			}
			*way.to += took
		}
	}
	return found, nil
}
