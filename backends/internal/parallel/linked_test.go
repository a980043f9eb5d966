package parallel

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cuda"
	"github.com/tinsmith/tinsmith/cudart"
	"github.com/tinsmith/tinsmith/cudart/shim"
)

// cudaTeam starts a team of n GPUs of the driver that needs none, whose streams run late; with links its ranks exchange through NCCL.
func cudaTeam(t *testing.T, n int, links bool) (*Team, []tensor.Device) {
	t.Helper()
	t.Setenv("FAKE_CUDA_LATE", "1")
	t.Setenv("FAKE_CUDA_DEVICES", fmt.Sprint(n))
	libraries := []string{shim.Require(t, shim.Options{})}
	var devices []tensor.Device
	for i := range n {
		d, err := cuda.New(cuda.Options{Device: fmt.Sprint("cuda:", i), Libraries: libraries})
		if err != nil {
			t.Fatal(err)
		}
		devices = append(devices, d)
	}
	if !links { // with which no device reaches another one's memory
		if err := tensor.Connect(devices); err != nil {
			t.Fatal(err)
		}
	}
	team := NewTeam(devices, Options{})
	if links {
		ends, err := devices[0].(tensor.Linker).Link(devices, tensor.LinkOptions{})
		if err != nil {
			t.Fatal(err)
		}
		team.Link(ends)
	}
	t.Cleanup(func() {
		if err := team.Close(); err != nil {
			t.Error(err)
		}
		for _, d := range devices {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return team, devices
}

// Over GPUs every operation gives the sums of the ranks in their order, through each other's memory and through NCCL, small and large, at once and in pieces.
func TestGPUs(t *testing.T) {
	const n = 3
	large := [2]int{1, oneShot + 5}
	for _, c := range []struct {
		name   string
		piece  int // 0: without NCCL
		shapes [][2]int
	}{
		{"local", 0, [][2]int{{0, 4}, {1, 1}, {3, 17}, large}},
		{"nccl", onePiece, [][2]int{{0, 4}, {1, 1}, {3, 17}, large}},
		{"nccl in small pieces", 7, [][2]int{{0, 4}, {1, 1}, {3, 11}, {11, 3}, {2, 7}}},
		{"nccl in large pieces", oneShot + 2, [][2]int{large}},
	} {
		t.Run(c.name, func(t *testing.T) {
			team, devices := cudaTeam(t, n, c.piece > 0)
			for _, l := range team.group.linked {
				l.piece = c.piece
			}
			for _, shape := range c.shapes {
				rows, cols := shape[0], shape[1]
				size := rows * cols
				sum, wide := treeSums(n, size), sums(n, n*size)
				var brought [n][]float32
				for r := range n {
					brought[r] = values(r, size)
				}
				if err := team.Run(func(rank int) error {
					c, d := team.Comm(rank), devices[rank]
					// Not contiguous: the middle of wider rows.
					err := with(d, make([]float32, rows*(cols+2)), rows, cols+2, func(x tensor.Tensor) error {
						x = x.Columns(1, cols+1)
						if err := errors.Join(d.Upload(x, brought[rank]), c.AllReduce(x)); err != nil {
							return err
						}
						if err := expect(d, x, func(row, col int) float32 { return sum[row*cols+col] }); err != nil {
							return fmt.Errorf("all-reduce: %w", err)
						}
						if err := errors.Join(d.Upload(x, brought[rank]), c.Broadcast(x, 1)); err != nil {
							return err
						}
						if err := expect(d, x, func(row, col int) float32 { return brought[1][row*cols+col] }); err != nil {
							return fmt.Errorf("broadcast: %w", err)
						}
						return nil
					})
					if err != nil || size > 100 {
						return err
					}
					return with(d, brought[rank], rows, cols, func(x tensor.Tensor) error {
						return with(d, values(rank, n*size), rows, n*cols, func(y tensor.Tensor) error {
							if err := c.ReduceScatter(x, y); err != nil {
								return err
							}
							if err := expect(d, x, func(row, col int) float32 { return wide[row*n*cols+rank*cols+col] }); err != nil {
								return fmt.Errorf("reduce-scatter: %w", err)
							}
							if err := errors.Join(d.Upload(x, brought[rank]), c.AllGather(y, x)); err != nil {
								return err
							}
							if err := expect(d, y, func(row, col int) float32 { return brought[col/cols][row*cols+col%cols] }); err != nil {
								return fmt.Errorf("all-gather: %w", err)
							}
							var err error
							switch rank {
							case 0:
								err = c.Send(x, 2)
							case 2:
								err = c.Recv(x, 0)
							}
							if err != nil {
								return err
							}
							from := rank
							if rank == 2 {
								from = 0
							}
							return expect(d, x, func(row, col int) float32 { return brought[from][row*cols+col] })
						})
					})
				}, nil); err != nil {
					t.Fatalf("%d × %d: %v", rows, cols, err)
				}
			}
		})
	}
}

// Sums over NCCL, and what is gathered, take as much memory as is said, whatever their size.
func TestExchangeHasABound(t *testing.T) {
	for _, n := range []int{2, 3} {
		team, devices := cudaTeam(t, n, true)
		if err := team.Run(func(rank int) error {
			l, d := team.group.linked[rank], devices[rank]
			l.piece = 16
			return with(d, make([]float32, 400), 20, 20, func(x tensor.Tensor) error {
				return with(d, make([]float32, n*400), 20, n*20, func(y tensor.Tensor) error {
					err := errors.Join(l.AllReduce(x.Slice(0, 1).Columns(0, 1)), l.AllReduce(x), l.AllGather(y, x))
					if want := roomElements(n, 16); err == nil && l.scratch.Cols != want {
						err = fmt.Errorf("%d elements are taken for pieces of 16, want %d", l.scratch.Cols, want)
					}
					return err
				})
			})
		}, nil); err != nil {
			t.Errorf("%d ranks: %v", n, err)
		}
	}
	for ranks, want := range map[int]int64{2: 32 << 20, 3: 34 << 20, 8: 34 << 20, 64: 64 << 20} {
		if got := LinkBytes(ranks); got != want {
			t.Errorf("%d ranks take %d bytes each, want %d", ranks, got, want)
		}
	}
}

// An error of NCCL names the function, says that the device is lost, and ends the group for good; no rank hangs.
func TestLinkFails(t *testing.T) {
	team, devices := cudaTeam(t, 2, true)
	reduce := func() error {
		return team.Run(func(rank int) error {
			return with(devices[rank], []float32{1, 2}, 1, 2, func(x tensor.Tensor) error { return team.Comm(rank).AllReduce(x) })
		}, nil)
	}
	if err := reduce(); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FAKE_NCCL_FAIL", "ncclAllGather")
	if err := reduce(); !errors.Is(err, cudart.ErrDeviceLost) {
		t.Errorf("error %v", err)
	}
	t.Setenv("FAKE_NCCL_FAIL", "")
	if err := reduce(); err == nil {
		t.Error("a group that was aborted goes on")
	}
}

// marked is a link that writes to the file of the driver's calls when an operation begins and when it has been launched.
type marked struct {
	tensor.Link
	file string
}

func (m marked) mark(line string) error {
	f, err := os.OpenFile(m.file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line + "\n")
	return errors.Join(err, f.Close())
}

func (m marked) within(f func() error) error {
	return errors.Join(m.mark("begin"), f(), m.mark("launched"))
}

func (m marked) AllGather(dst, src tensor.Tensor) error {
	return m.within(func() error { return m.Link.AllGather(dst, src) })
}

func (m marked) AllToAll(dst, src tensor.Tensor) error {
	return m.within(func() error { return m.Link.AllToAll(dst, src) })
}

func (m marked) Broadcast(t tensor.Tensor, root int) error {
	return m.within(func() error { return m.Link.Broadcast(t, root) })
}

func (m marked) Send(t tensor.Tensor, to int) error {
	return m.within(func() error { return m.Link.Send(t, to) })
}

func (m marked) Recv(t tensor.Tensor, from int) error {
	return m.within(func() error { return m.Link.Recv(t, from) })
}

// While a rank's operation of NCCL waits for the others' no host makes a graph, starts one, takes memory or gives it back, also none that has no part in it: the driver may wait for that operation then, and the others' with it. What a pass has recorded before
// is started before the ranks meet, as a graph where it has come before; the sums of many ranks, which are as long as what is made a graph, are launched one by one.
func TestPlainLaunchesInExchanges(t *testing.T) {
	const n, passes = 8, 4
	team, devices := cudaTeam(t, n, true)
	file := filepath.Join(t.TempDir(), "calls")
	for _, l := range team.group.linked {
		l.link, l.piece = marked{l.link, file}, 4
	}
	for _, c := range []struct {
		name     string
		ranks    int // that have part in it
		exchange func(c Comm, x, wide tensor.Tensor) error
	}{
		{"all-reduce", n, func(c Comm, x, _ tensor.Tensor) error { return c.AllReduce(x) }},
		{"all-gather", n, func(c Comm, x, wide tensor.Tensor) error { return c.AllGather(wide, x) }},
		{"reduce-scatter", n, func(c Comm, x, wide tensor.Tensor) error { return c.ReduceScatter(x, wide) }},
		{"broadcast", n, func(c Comm, x, _ tensor.Tensor) error { return c.Broadcast(x, 1) }},
		{"send", 2, func(c Comm, x, _ tensor.Tensor) error {
			if c.Rank() == 0 {
				return c.Send(x, 1)
			}
			return c.Recv(x, 0)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
			home, err := cuda.New(cuda.Options{Device: "cuda:0", Libraries: []string{shim.Require(t, shim.Options{})}})
			if err != nil {
				t.Fatal(err)
			}
			t.Setenv("FAKE_CUDA_COUNT", file)
			stop := make(chan struct{})
			var beside sync.WaitGroup
			beside.Go(func() { // as the engine's goroutine, on a rank's GPU
				for {
					select {
					case <-stop:
						return
					default:
					}
					x, err := home.Alloc(tensor.Float32, 1, 100)
					if err != nil {
						t.Error(err)
						return
					}
					home.Free(x)
					home.Trim()
				}
			})
			err = team.Run(func(rank int) error {
				if rank >= c.ranks {
					return nil
				}
				d := devices[rank]
				return with(d, make([]float32, 12), 1, 12, func(x tensor.Tensor) error {
					return with(d, make([]float32, n*12), 1, n*12, func(wide tensor.Tensor) error {
						for range passes {
							if err := d.(tensor.Recorder).Record(func() error {
								for range 10 {
									if err := d.Add(x, x); err != nil {
										return err
									}
								}
								return c.exchange(team.Comm(rank), x, wide)
							}); err != nil {
								return err
							}
						}
						return nil
					})
				})
			}, nil)
			close(stop)
			beside.Wait()
			t.Setenv("FAKE_CUDA_COUNT", "")
			err = errors.Join(err, home.Close())
			text, failed := os.ReadFile(file)
			if err := errors.Join(err, failed); err != nil {
				t.Fatal(err)
			}
			under, operations, graphs, memory := 0, 0, 0, 0
			for line := range strings.Lines(string(text)) {
				switch line = strings.TrimSpace(line); {
				case line == "begin":
					under++
					operations++
				case line == "launched":
					under--
				case strings.HasPrefix(line, "cuGraph") || strings.HasPrefix(line, "cuMemAlloc") || strings.HasPrefix(line, "cuMemFree") || strings.HasPrefix(line, "cuMemHostAlloc"):
					if line == "cuGraphLaunch" {
						graphs++
					}
					if strings.HasPrefix(line, "cuMem") {
						memory++
					}
					if under > 0 {
						t.Errorf("%s while %d ranks are in an operation", line, under)
					}
				}
			}
			if operations < 2*passes || graphs < passes || memory < passes {
				t.Errorf("%d operations, %d graphs, and memory taken or given back %d times: the test shows nothing", operations, graphs, memory)
			}
		})
	}
}
