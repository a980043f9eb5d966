package parallel

import (
	"errors"
	"fmt"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// linked is a Comm over tensor.Link. The library only moves values; they are added by this package, as local adds them, so that a sum has the same bits as over local, whatever the library's version, algorithm and
// topology. The ranks meet on the host before each operation, as in local, so that one that has failed is not waited for.
type linked struct {
	*local
	link    tensor.Link
	piece   int           // elements of a tensor that are under way at once, at most
	scratch tensor.Tensor // contiguous; what LinkBytes says, or more
}

const (
	// oneShot is how many elements are summed from whole copies of all ranks; of more every rank sums a share. Either way an element is the same sum.
	oneShot = 1 << 18
	// onePiece is how many elements are exchanged at once: enough for the library's full speed, and what that takes of memory has a bound.
	onePiece = 1 << 22
)

// LinkBytes is the memory that a rank of so many takes of its device to exchange tensors through a link, from its first exchange on. Only tensors that are sent from one rank to another, broadcast or scattered take more,
// where they are larger than that.
func LinkBytes(ranks int) int64 {
	return tensor.OwnMemoryBytes(int64(roomElements(ranks, onePiece)) * int64(tensor.Float32.Size()))
}

// roomElements is the most that an exchange of pieces takes: whole copies of all ranks, or what each rank sends and receives as shares.
func roomElements(ranks, piece int) int {
	if ranks > 2 {
		return max(ranks*min(piece, oneShot), 2*(piece+ranks))
	}
	return ranks * piece
}

// Link has the team's Comms exchange tensors through links, by rank, which are the team's from then on. It comes before the first Run.
func (t *Team) Link(links []tensor.Link) {
	for rank, l := range links {
		t.group.linked = append(t.group.linked, &linked{local: t.group.ranks[rank], link: l, piece: onePiece})
	}
}

// reserve has scratch memory for n elements, and for any exchange of pieces. It comes before the ranks meet, because it may fail.
func (c *linked) reserve(n int) error {
	if n = max(n, roomElements(c.Size(), c.piece)); c.scratch.Buffer == nil || c.scratch.Cols < n {
		if c.scratch.Buffer != nil {
			c.device.Free(c.scratch)
			c.scratch = tensor.Tensor{}
		}
		s, err := c.device.Alloc(tensor.Float32, 1, n)
		if err != nil {
			c.group.fail()
			return err
		}
		c.scratch = s
	}
	return nil
}

// room is reserve for rows × cols, and gives them.
func (c *linked) room(rows, cols int) (tensor.Tensor, error) {
	if err := c.reserve(rows * cols); err != nil {
		return tensor.Tensor{}, err
	}
	return c.view(rows, cols), nil
}

// view is the beginning of the scratch memory.
func (c *linked) view(rows, cols int) tensor.Tensor {
	return c.scratch.Columns(0, rows*cols).Reshape(rows, cols)
}

// pieces cuts rows × cols into parts of so many elements at most: whole rows, or parts of one.
func pieces(rows, cols, most int, f func(fromRow, toRow, fromCol, toCol int) error) error {
	if cols == 0 {
		return nil
	}
	height, width := max(1, most/cols), min(cols, most)
	for row := 0; row < rows; row += height {
		for col := 0; col < cols; col += width {
			if err := f(row, min(rows, row+height), col, min(cols, col+width)); err != nil {
				return err
			}
		}
	}
	return nil
}

// ready starts what the rank's device has put off. It comes before the ranks meet: from then until all have given the library their operations, devices are given plain launches only (tensor.Link).
func (c *linked) ready() error {
	err := c.link.Ready()
	if err != nil {
		c.group.fail()
	}
	return err
}

// exchange meets the other ranks, runs f and meets them again. When a rank fails in f, what the others have given to the library has no other end any more: all abort it, and the group is of no more use.
func (c *linked) exchange(s slot, f func() error) error {
	if err := c.ready(); err != nil {
		return err
	}
	entered, release := false, func() {}
	defer func() { release() }()
	err := c.meet(s, sameShape, func([]slot) error {
		entered, release = true, c.link.Hold()
		return f()
	})
	if err != nil && entered {
		err = errors.Join(err, c.link.Abort())
	}
	return err
}

func (c *linked) AllReduce(ts ...tensor.Tensor) error {
	if err := c.reserve(0); err != nil {
		return err
	}
	return c.exchange(slot{operation: "all-reduce", tensors: ts}, func() error {
		for _, t := range ts {
			if err := pieces(t.Rows, t.Cols, c.piece, func(fromRow, toRow, fromCol, toCol int) error {
				piece := t.Slice(fromRow, toRow).Columns(fromCol, toCol)
				if c.Size() > 2 && piece.Rows*piece.Cols > oneShot {
					return c.reduceShares(piece)
				}
				return c.reduceWhole(piece)
			}); err != nil {
				return err
			}
		}
		return nil
	})
}

// reduceWhole has every rank sum whole copies of all ranks' tensors.
func (c *linked) reduceWhole(t tensor.Tensor) error {
	all := c.view(c.Size(), t.Rows*t.Cols)
	part := func(r int) tensor.Tensor { return all.Slice(r, r+1).Reshape(t.Rows, t.Cols) }
	if err := c.device.Round(part(c.rank), t); err != nil {
		return err
	}
	if err := c.link.AllGather(all, all.Slice(c.rank, c.rank+1)); err != nil {
		return err
	}
	return c.treeSum(t, part)
}

// treeSum writes the sum of the ranks' parts, which become sums of several.
func (c *linked) treeSum(t tensor.Tensor, part func(rank int) tensor.Tensor) error {
	if err := tree(c.Size(), func(to, from int) error { return c.device.Add(part(to), part(from)) }); err != nil {
		return err
	}
	return c.device.Round(t, part(0))
}

// sum writes the sum of the ranks' parts in their order.
func (c *linked) sum(t tensor.Tensor, part func(rank int) tensor.Tensor) error {
	if err := c.device.Round(t, part(0)); err != nil {
		return err
	}
	for r := 1; r < c.Size(); r++ {
		if err := c.device.Add(t, part(r)); err != nil {
			return err
		}
	}
	return nil
}

// reduceShares has every rank sum the same share of all ranks' tensors, and then gathers the sums.
func (c *linked) reduceShares(t tensor.Tensor) error {
	n, elements := c.Size(), t.Rows*t.Cols
	share := (elements + n - 1) / n
	all := c.view(2*n, share)
	mine, theirs := all.Slice(0, n), all.Slice(n, 2*n)
	flat := mine.Reshape(1, n*share).Columns(0, elements).Reshape(t.Rows, t.Cols)
	if err := c.device.Round(flat, t); err != nil {
		return err
	}
	if err := c.link.AllToAll(theirs, mine); err != nil {
		return err
	}
	own := mine.Slice(c.rank, c.rank+1)
	if err := c.treeSum(own, func(r int) tensor.Tensor { return theirs.Slice(r, r+1) }); err != nil {
		return err
	}
	if err := c.link.AllGather(mine, own); err != nil {
		return err
	}
	return c.device.Round(t, flat)
}

func (c *linked) AllGather(dst, part tensor.Tensor) error {
	n := c.Size()
	if err := c.checkGather(dst, part); err != nil {
		return err
	}
	if err := c.reserve(0); err != nil {
		return err
	}
	most := max(1, roomElements(n, c.piece)/n) // of a part
	return c.exchange(slot{operation: "all-gather", tensor: dst, part: part}, func() error {
		return pieces(part.Rows, part.Cols, most, func(fromRow, toRow, fromCol, toCol int) error {
			rows, cols := toRow-fromRow, toCol-fromCol
			all := c.view(n, rows*cols)
			of := func(r int) tensor.Tensor { return all.Slice(r, r+1).Reshape(rows, cols) }
			if err := c.device.Round(of(c.rank), part.Slice(fromRow, toRow).Columns(fromCol, toCol)); err != nil {
				return err
			}
			if err := c.link.AllGather(all, all.Slice(c.rank, c.rank+1)); err != nil {
				return err
			}
			for r := range n {
				if err := c.device.Round(dst.Slice(fromRow, toRow).Columns(r*part.Cols+fromCol, r*part.Cols+toCol), of(r)); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func (c *linked) ReduceScatter(dst, src tensor.Tensor) error {
	n := c.Size()
	if err := c.checkScatter(dst, src); err != nil {
		return err
	}
	all, err := c.room(2*n, dst.Rows*dst.Cols)
	if err != nil {
		return err
	}
	return c.exchange(slot{operation: "reduce-scatter", tensor: src, part: dst}, func() error {
		if dst.Rows*dst.Cols == 0 {
			return nil
		}
		of := func(r int) tensor.Tensor { return all.Slice(r, r+1).Reshape(dst.Rows, dst.Cols) }
		for r := range n {
			if err := c.device.Round(of(r), src.Columns(r*dst.Cols, (r+1)*dst.Cols)); err != nil {
				return err
			}
		}
		if err := c.link.AllToAll(all.Slice(n, 2*n), all.Slice(0, n)); err != nil {
			return err
		}
		return c.sum(dst, func(r int) tensor.Tensor { return of(n + r) })
	})
}

func (c *linked) Broadcast(t tensor.Tensor, root int) error {
	if err := c.checkRoot(root); err != nil {
		return err
	}
	flat, err := c.room(t.Rows, t.Cols)
	if err != nil {
		return err
	}
	return c.exchange(slot{operation: "broadcast", root: root, tensor: t}, func() error {
		if c.rank == root {
			if err := c.device.Round(flat, t); err != nil {
				return err
			}
		}
		if err := c.link.Broadcast(flat, root); err != nil || c.rank == root {
			return err
		}
		return c.device.Round(t, flat)
	})
}

func (c *linked) Send(t tensor.Tensor, to int) error {
	flat, err := c.room(t.Rows, t.Cols)
	if err != nil {
		return err
	}
	if err := c.device.Round(flat, t); err != nil {
		c.group.fail()
		return err
	}
	if err := c.ready(); err != nil {
		return err
	}
	release := func() {}
	defer func() { release() }()
	return c.give(t, to, func() error {
		release = c.link.Hold()
		if err := c.link.Send(flat, to); err != nil {
			return err
		}
		c.group.backs[to][c.rank] <- nil // the receiver goes on when both have launched their parts, as the sender does
		return nil
	})
}

func (c *linked) Recv(t tensor.Tensor, from int) error {
	flat, err := c.room(t.Rows, t.Cols)
	if err != nil {
		return err
	}
	if err := c.ready(); err != nil {
		return err
	}
	return c.take(t, from, func(tensor.Tensor) error {
		defer c.link.Hold()()
		if err := c.link.Recv(flat, from); err != nil {
			return err
		}
		select {
		case <-c.group.backs[c.rank][from]: // this rank sends nothing meanwhile
		case <-c.group.lost:
			return ErrLost
		}
		return c.device.Round(t, flat)
	})
}

// close frees the memory and the link.
func (c *linked) close() error {
	if c.scratch.Buffer != nil {
		c.device.Free(c.scratch)
		c.scratch = tensor.Tensor{}
	}
	if err := c.link.Close(); err != nil {
		return fmt.Errorf("rank %d: %w", c.rank, err)
	}
	return nil
}
