package parallel

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// team starts a team of n ranks of the processor, with one thread each.
func team(t *testing.T, n int) (*Team, []tensor.Device) {
	t.Helper()
	devices := make([]tensor.Device, n)
	for i := range devices {
		d, err := cpu.New(cpu.Options{Threads: 1})
		if err != nil {
			t.Fatal(err)
		}
		devices[i] = d
	}
	team := NewTeam(devices, Options{})
	t.Cleanup(func() {
		team.Close()
		for _, d := range devices {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return team, devices
}

// values gives the numbers that rank brings: large and small, so that the order of a sum shows.
func values(rank, n int) []float32 {
	random := rand.New(rand.NewPCG(uint64(rank), uint64(n)))
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(random.NormFloat64() * math.Pow(10, float64(random.IntN(7))))
	}
	return v
}

// treeSums adds the ranks' values as AllReduce says.
func treeSums(ranks, n int) []float32 {
	var all [][]float32
	for r := range ranks {
		all = append(all, values(r, n))
	}
	for len(all) > 1 {
		var next [][]float32
		for i := 0; i < len(all); i += 2 {
			if i+1 < len(all) {
				for k, v := range all[i+1] {
					all[i][k] += v
				}
			}
			next = append(next, all[i])
		}
		all = next
	}
	return all[0]
}

// sums adds the ranks' values in order.
func sums(ranks, n int) []float32 {
	total := values(0, n)
	for r := 1; r < ranks; r++ {
		for i, v := range values(r, n) {
			total[i] += v
		}
	}
	return total
}

// with runs f with a tensor of given values.
func with(d tensor.Device, v []float32, rows, cols int, f func(tensor.Tensor) error) error {
	x, err := d.Alloc(tensor.Float32, rows, cols)
	if err != nil {
		return err
	}
	defer d.Free(x)
	if err := d.Upload(x, v); err != nil {
		return err
	}
	return f(x)
}

// expect compares a tensor with values.
func expect(d tensor.Device, x tensor.Tensor, want func(row, col int) float32) error {
	got := make([]float32, x.Rows*x.Cols)
	if err := d.Download(got, x); err != nil {
		return err
	}
	for i, v := range got {
		if w := want(i/x.Cols, i%x.Cols); math.Float32bits(v) != math.Float32bits(w) {
			return fmt.Errorf("element %d is %v, want %v", i, v, w)
		}
	}
	return nil
}

func TestOperations(t *testing.T) {
	for _, ranks := range []int{2, 3, 5, 8} {
		team, devices := team(t, ranks)
		for _, shape := range [][2]int{{1, 1}, {1, 64}, {3, 17}, {20, 33}, {0, 4}} {
			rows, cols := shape[0], shape[1]
			n := rows * cols
			wide := rows * cols * ranks
			sum, wideSum := treeSums(ranks, n), sums(ranks, wide)
			var parts [][]float32
			for r := range ranks {
				parts = append(parts, values(r, n))
			}
			for name, f := range map[string]func(c Comm, d tensor.Device, rank int) error{
				"all-reduce": func(c Comm, d tensor.Device, rank int) error {
					return with(d, values(rank, n), rows, cols, func(x tensor.Tensor) error {
						if err := c.AllReduce(x); err != nil {
							return err
						}
						return expect(d, x, func(row, col int) float32 { return sum[row*cols+col] })
					})
				},
				"all-gather": func(c Comm, d tensor.Device, rank int) error {
					return with(d, values(rank, n), rows, cols, func(x tensor.Tensor) error {
						return with(d, make([]float32, wide), rows, cols*ranks, func(to tensor.Tensor) error {
							if err := c.AllGather(to, x); err != nil {
								return err
							}
							return expect(d, to, func(row, col int) float32 { return parts[col/cols][row*cols+col%cols] })
						})
					})
				},
				"reduce-scatter": func(c Comm, d tensor.Device, rank int) error {
					return with(d, values(rank, wide), rows, cols*ranks, func(x tensor.Tensor) error {
						return with(d, make([]float32, n), rows, cols, func(to tensor.Tensor) error {
							if err := c.ReduceScatter(to, x); err != nil {
								return err
							}
							return expect(d, to, func(row, col int) float32 { return wideSum[row*cols*ranks+rank*cols+col] })
						})
					})
				},
				"broadcast": func(c Comm, d tensor.Device, rank int) error {
					return with(d, values(rank, n), rows, cols, func(x tensor.Tensor) error {
						if err := c.Broadcast(x, ranks-1); err != nil {
							return err
						}
						return expect(d, x, func(row, col int) float32 { return parts[ranks-1][row*cols+col] })
					})
				},
				"send and receive": func(c Comm, d tensor.Device, rank int) error {
					return with(d, values(rank, n), rows, cols, func(x tensor.Tensor) error {
						switch rank {
						case 0:
							return c.Send(x, 1)
						case 1:
							if err := c.Recv(x, 0); err != nil {
								return err
							}
							return expect(d, x, func(row, col int) float32 { return parts[0][row*cols+col] })
						}
						return nil
					})
				},
				"host": func(c Comm, _ tensor.Device, rank int) error {
					v := values(rank, n)
					if err := c.AllReduceHost(v); err != nil {
						return err
					}
					for i := range v {
						if v[i] != sum[i] {
							return fmt.Errorf("value %d is %v", i, v[i])
						}
					}
					return nil
				},
			} {
				t.Run(fmt.Sprintf("%d ranks/%d × %d/%s", ranks, rows, cols, name), func(t *testing.T) {
					if err := team.Run(func(rank int) error { return f(team.Comm(rank), devices[rank], rank) }, nil); err != nil {
						t.Fatal(err)
					}
				})
			}
		}
	}
}

// A rank that fails releases the others wherever they wait, its own error is the team's, and the team works on.
func TestFailureReleases(t *testing.T) {
	mine := errors.New("no memory on rank 1")
	team, devices := team(t, 3)
	for name, wait := range map[string]func(c Comm, d tensor.Device) error{
		"all-reduce": func(c Comm, d tensor.Device) error {
			return with(d, []float32{1}, 1, 1, func(x tensor.Tensor) error { return c.AllReduce(x) })
		},
		"host": func(c Comm, _ tensor.Device) error { return c.AllReduceHost([]float32{1}) },
		"send": func(c Comm, d tensor.Device) error {
			return with(d, []float32{1}, 1, 1, func(x tensor.Tensor) error { return c.Send(x, 1) })
		},
		"receive": func(c Comm, d tensor.Device) error {
			return with(d, []float32{1}, 1, 1, func(x tensor.Tensor) error { return c.Recv(x, 1) })
		},
		"point": func(c Comm, _ tensor.Device) error {
			for {
				if err := team.Point(c.Rank()); err != nil {
					return err
				}
				if c.Rank() == 0 { // rank 0 waits at no point
					return c.AllReduceHost([]float32{1})
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var released [3]error
			err := team.Run(func(rank int) error {
				if rank == 1 {
					return mine
				}
				released[rank] = wait(team.Comm(rank), devices[rank])
				return released[rank]
			}, nil)
			if !errors.Is(err, mine) || !errors.Is(released[0], ErrLost) || !errors.Is(released[2], ErrLost) {
				t.Fatalf("%v; %v", err, released)
			}
			if err := team.Run(func(rank int) error { return team.Comm(rank).AllReduceHost([]float32{1}) }, nil); err != nil {
				t.Fatalf("afterwards: %v", err)
			}
		})
	}
}

func TestRanksThatComeApart(t *testing.T) {
	team, devices := team(t, 2)
	for name, f := range map[string]func(c Comm, d tensor.Device, rank int) error{
		"operations": func(c Comm, d tensor.Device, rank int) error {
			return with(d, []float32{1}, 1, 1, func(x tensor.Tensor) error {
				if rank == 0 {
					return c.AllReduce(x)
				}
				return c.Broadcast(x, 0)
			})
		},
		"shapes": func(c Comm, d tensor.Device, rank int) error {
			return with(d, make([]float32, 1+rank), 1, 1+rank, func(x tensor.Tensor) error { return c.AllReduce(x) })
		},
		"lengths": func(c Comm, _ tensor.Device, rank int) error { return c.AllReduceHost(make([]float32, 1+rank)) },
	} {
		t.Run(name, func(t *testing.T) {
			err := team.Run(func(rank int) error { return f(team.Comm(rank), devices[rank], rank) }, nil)
			if err == nil || !strings.Contains(err.Error(), "come apart") {
				t.Fatal(err)
			}
		})
	}
}

// Functions that are given while another runs are run by all ranks at the same of its points, in their order, and may communicate and fail without harm to it.
func TestPoints(t *testing.T) {
	for _, ranks := range []int{1, 2, 3} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			team, _ := team(t, ranks)
			at := make([]int, ranks) // points of the outer function
			reduce := func(rank int) error {
				if c := team.Comm(rank); c != nil {
					return c.AllReduceHost([]float32{1})
				}
				return nil
			}
			broken := errors.New("inner")
			inner, wanted := 0, 20
			err := team.Run(func(rank int) error {
				for at[rank] = 0; inner < wanted || at[rank] < 50; at[rank]++ {
					if err := reduce(rank); err != nil {
						return err
					}
					if err := team.Point(rank); err != nil {
						return err
					}
					if at[rank] > 1_000_000 {
						return errors.New("nothing was run at the points")
					}
					if err := reduce(rank); err != nil { // between it and the next reading of inner nothing is run
						return err
					}
				}
				return nil
			}, func() error {
				if inner == wanted {
					return nil
				}
				seen := make([]int, ranks)
				err := team.Run(func(rank int) error {
					seen[rank] = at[rank]
					if err := reduce(rank); err != nil {
						return err
					}
					if rank == 0 {
						if inner++; inner%5 == 0 {
							return broken
						}
					}
					return reduce(rank)
				}, nil)
				if inner%5 == 0 && !errors.Is(err, broken) {
					return fmt.Errorf("the inner error is %w", err)
				}
				if slices.Min(seen) != slices.Max(seen) {
					return fmt.Errorf("run at points %v", seen)
				}
				return nil
			})
			if err != nil || inner != wanted {
				t.Fatal(inner, err)
			}
		})
	}
}

// An error of yield ends the function on every rank.
func TestYieldEnds(t *testing.T) {
	stop := errors.New("stop")
	for _, ranks := range []int{0, 1, 3} { // 0: inline
		team := Inline()
		if ranks > 0 {
			team, _ = teamOf(t, ranks)
		}
		ended := make([]error, max(1, ranks))
		calls := 0
		err := team.Run(func(rank int) error {
			for ended[rank] == nil {
				ended[rank] = team.Point(rank)
			}
			return ended[rank]
		}, func() error {
			if calls++; calls == 3 {
				return stop
			}
			return nil
		})
		if !errors.Is(err, stop) || slices.ContainsFunc(ended, func(e error) bool { return !errors.Is(e, stop) }) {
			t.Fatal(ranks, err, ended)
		}
	}
}

var teamOf = team

func TestClosedTeam(t *testing.T) {
	team, _ := team(t, 2)
	team.Close()
	if err := team.Run(func(int) error { return nil }, nil); !errors.Is(err, errClosed) {
		t.Fatal(err)
	}
}

// While a team is held, what it was running stands still, and what is given to it runs.
func TestHold(t *testing.T) {
	for _, ranks := range []int{1, 3} {
		team, _ := team(t, ranks)
		steps := make([]int, ranks)
		stop, began := false, make(chan struct{})
		ended := make(chan error)
		go func() {
			ended <- team.Run(func(rank int) error {
				for {
					if steps[rank]++; steps[rank] == 1 && rank == 0 {
						close(began)
					}
					if err := team.Point(rank); err != nil {
						return err
					}
					if stop {
						return nil
					}
				}
			}, nil)
		}()
		<-began
		release := team.Hold()
		var seen [2][]int
		for i := range seen {
			seen[i] = make([]int, ranks)
			if err := team.Run(func(rank int) error { seen[i][rank] = steps[rank]; return nil }, nil); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(seen[0], seen[1]) || slices.Min(seen[0]) != slices.Max(seen[0]) {
			t.Errorf("held at %v and %v", seen[0], seen[1])
		}
		if err := team.Run(func(rank int) error {
			if rank == 0 {
				stop = true
			}
			if c := team.Comm(rank); c != nil {
				return c.AllReduceHost(nil) // all see it
			}
			return nil
		}, nil); err != nil {
			t.Fatal(err)
		}
		release()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
	Inline().Hold()()
}

// A function that is given while the team is held, and is at a point when the hold is released, does not take the release away.
func TestHoldReleasedAtAPoint(t *testing.T) {
	for _, ranks := range []int{1, 2} {
		team, _ := team(t, ranks)
		release := team.Hold()
		over := make(chan struct{})
		err := team.Run(func(rank int) error {
			if err := team.Point(rank); err != nil {
				return err
			}
			<-over
			return team.Point(rank) // where the release is run
		}, func() error {
			if release != nil {
				release()
				release = nil
				close(over)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := team.Run(func(int) error { return nil }, nil); err != nil {
			t.Fatal(err)
		}
	}
}
