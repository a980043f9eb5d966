package cudart

import (
	"errors"
	"fmt"
)

// Products of few rows with weights in blocks can be by clusters of blocks that share rows (kernels/product_cluster.cu). The kernels are in the module of
// bulk copies. Nobody has run them on a GPU yet: CheckClusters says whether they give
// the bits of those by warps there, and whether they take less time.

// clusterShape is a shape of product_cluster.cu: the tile of a block, its threads, and how many tiles of the inner axis it has room for.
type clusterShape struct {
	rows, columns, threads, places int
}

// clusterShapes are in the order of their kernels.
var clusterShapes = []clusterShape{{16, 32, 96, 10}, {32, 32, 160, 7}, {64, 32, 160, 7}, {64, 64, 160, 5}}

// clusterBlocks is how many blocks have rows in common, and columns beside each other.
const clusterBlocks = 4

// kernel gives the shape's kernel. In shared memory a row of x has 16 bytes more than the tile, against bank conflicts; each place has two mbarriers, and one
// more is for the tail.
func (s clusterShape) kernel() kernel {
	place := s.rows*(2*BlockSide+16) + s.columns*2*BlockSide
	return kernel{fmt.Sprintf("product_cluster_%dx%d", s.rows, s.columns), s.threads, (s.places+1)*place + 16*s.places}
}

// clusterTile is the tile of shape i.
func clusterTile(i int) tile {
	s := clusterShapes[i]
	return tile{kernel: kProductCluster + i, rows: int64(s.rows), columns: int64(s.columns), cluster: clusterBlocks}
}

// UseClusters has products of few rows with weights of BFloat16Blocks be by clusters, or no more. It is called after UseBulk.
func (v *Device) UseClusters(use bool) error {
	switch {
	case v.c == nil:
		return errClosed
	case use && !v.bulk:
		return errors.New("clusters are for weights in blocks: UseBulk comes first")
	}
	v.clusters = use
	return nil
}

// Clusters says whether products of few rows are by clusters.
func (v *Device) Clusters() bool { return v.clusters }

// leastClusterDepth is the inner axis from which on clusters pay: a shorter one is read while the blocks of a cluster wait for each other to begin. An
// estimate.
const leastClusterDepth = 256

// forCluster says whether kernels by clusters take a part.
func (p *part) forCluster(transposed bool) bool {
	if len(p.groups) != 1 || transposed {
		return false
	}
	g := &p.groups[0]
	fits := g.From < g.To && (g.tail.At == 0 || g.tail.In <= BlockSide)
	return fits && InBlocks(g.Weight.Out, g.Weight.In) && p.x.Cols >= g.Weight.In && inChunks(p.x, p.xType)
}

// clustersTile chooses among the kernels by clusters, as bfloat16Tile does among those by warps: a block reads its columns, and its share of the rows. False
// if a part is not for them, or has more rows than the largest tile.
func (v *Device) clustersTile(parts []part, of Type, transposed bool) (best tile, ok bool) {
	if !v.clusters || of != BFloat16Blocks {
		return tile{}, false
	}
	most := int64(0)
	for i := range parts {
		p := &parts[i]
		if !p.forCluster(transposed) || p.groups[0].Weight.In < leastClusterDepth {
			return tile{}, false
		}
		most = max(most, p.groups[0].To-p.groups[0].From)
	}
	least, devices := int64(0), int64(v.multiprocessors)
	for i := range clusterShapes {
		t, blocks := clusterTile(i), int64(0)
		if t.rows < most || ok && t.rows > best.rows {
			continue
		}
		for k := range parts {
			_, across := parts[k].grid(t)
			blocks += across
		}
		if reads := (blocks + devices - 1) / devices * (t.rows/clusterBlocks + t.columns); !ok || reads < least {
			best, least, ok = t, reads, true
		}
	}
	return best, ok
}

// fewRowsTile chooses the kernel of products that are not for warpgroups: all of them have the same bits.
func (v *Device) fewRowsTile(parts []part, of Type, transposed bool) tile {
	if shape, ok := v.clustersTile(parts, of, transposed); ok {
		return shape
	}
	shape, _ := v.bfloat16Tile(parts, transposed)
	shape.kernel = kernelFor(shape.kernel, of)
	return shape
}
