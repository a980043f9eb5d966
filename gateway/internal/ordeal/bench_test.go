package ordeal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/tinsmith/tinsmith/gateway/internal/keys"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	front "github.com/tinsmith/tinsmith/gateway/internal/server"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/gateway/internal/telemetry"
	"github.com/tinsmith/tinsmith/gateway/internal/tinker"
	"github.com/tinsmith/tinsmith/plugins"
)

// idle is a backend that does nothing, at once, so that what is measured is the gateway. It is its own runs.Backends.
type idle struct{ plugins.Backend }

func (idle) CreateAdapter(context.Context, plugins.CreateAdapterRequest) (plugins.AdapterInfo, error) {
	return plugins.AdapterInfo{}, nil
}

func (idle) DeleteAdapter(context.Context, string) error { return nil }

func (idle) ForwardBackward(_ context.Context, r plugins.ForwardBackwardRequest) (plugins.ForwardBackwardResult, error) {
	out := plugins.ForwardBackwardResult{Metrics: map[string]float64{"loss:sum": 0}}
	for _, d := range r.Data {
		out.Logprobs = append(out.Logprobs, make([]float32, len(d.Targets)))
	}
	return out, nil
}

func (b idle) get(context.Context, string) (runs.Backend, error) {
	return runs.Backend{Backend: b, BootID: "idle", Model: plugins.ModelInfo{VocabSize: 4096, MaxContextLength: 4096, MaxRank: 64}, Reason: func() string { return "" }}, nil
}

// always gives the one backend.
type always func(context.Context, string) (runs.Backend, error)

func (f always) Backend(ctx context.Context, model string) (runs.Backend, error) {
	return f(ctx, model)
}

// payloadTokens make a training request of about 1 KiB.
const payloadTokens = 64

// gatewayOnly is a gateway with its runs, one per client.
type gatewayOnly struct {
	core    *runs.Core
	close   func() error
	Address string
	Runs    []string
}

// openGatewayOnly makes one in this process.
func openGatewayOnly(ctx context.Context, dir string, clients int) (*gatewayOnly, error) {
	gin.SetMode(gin.ReleaseMode)
	records, err := store.Open(ctx, store.Options{Dir: dir, Reserve: -1})
	if err != nil {
		return nil, err
	}
	core, err := runs.Open(ctx, runs.Config{
		Store: records, DataDir: dir, Models: []runs.Model{{Name: modelName}}, Backends: always(idle{}.get), Logger: slog.New(slog.DiscardHandler), SweepEvery: time.Hour,
		PointEvery: 24 * time.Hour, PointOperations: 1 << 30, // an idle backend has nothing to write
	})
	if err != nil {
		return nil, errors.Join(err, records.Close())
	}
	g := &gatewayOnly{core: core, close: func() error {
		stop, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		return errors.Join(core.Close(stop), records.Close())
	}}
	session, err := core.CreateSession(ctx, runs.NewSession{Owner: keys.Anonymous})
	for i := 0; i < clients && err == nil; i++ {
		seed := uint64(1)
		var made runs.Submitted
		made, err = core.CreateRun(ctx, runs.NewRun{Owner: keys.Anonymous, SessionID: session.ID, ModelSeq: int64(i), BaseModel: modelName, LoRA: runs.LoRAConfig{Rank: 4, Seed: &seed, TrainMLP: true}})
		if err == nil {
			err = g.wait(ctx, made.RequestID)
		}
		g.Runs = append(g.Runs, made.RunID)
	}
	if err != nil {
		return nil, errors.Join(err, g.close())
	}
	return g, nil
}

// spent is what a process has used so far.
type spent struct {
	Processor   time.Duration
	Allocations uint64
}

// spentHere is what this process has used.
func spentHere() (spent, error) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return spent{}, err
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return spent{Processor: time.Duration(u.Utime.Nano() + u.Stime.Nano()), Allocations: m.Mallocs}, nil
}

// idleGateway is the main function of a process that is such a gateway in its folder and nothing else. It answers every byte of its standard input with what it has spent, and serves until
// that ends. With profileVariable it writes its CPU profile to that file.
func idleGateway(clients int) (err error) {
	if name := os.Getenv(profileVariable); name != "" {
		f, err := os.Create(name)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	tel, err := telemetry.Start(ctx, "bench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tel.Stop(context.WithoutCancel(ctx))) }()
	g, err := openGatewayOnly(ctx, ".", clients)
	if err != nil {
		return err
	}
	ring, err := keys.Open("")
	if err != nil {
		return err
	}
	auth := &keys.Authenticator{Ring: ring, Tokens: keys.Tokens{Secret: make([]byte, 32), Lifetime: time.Hour}}
	api, err := tinker.New(g.core, auth, tinker.Options{MaxPerClient: 2000})
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	g.Address = listener.Addr().String()
	answers := json.NewEncoder(os.Stdout)
	if err := answers.Encode(g); err != nil {
		return err
	}
	go func() {
		defer cancel() // however the input ends, nobody is there any more
		for question := make([]byte, 1); ; {
			if _, err := os.Stdin.Read(question); err != nil {
				return
			}
			s, err := spentHere()
			if err == nil {
				err = answers.Encode(s)
			}
			if err != nil {
				return
			}
		}
	}()
	meter := front.NewMeter()
	if err := tel.Registry.Register(meter); err != nil {
		return err
	}
	handler := front.New(front.Options{Health: func() front.Health { return front.Health{Status: "ok"} }, Metrics: tel.Handler, Meter: meter, Traces: tel.Traces, Routes: []func(gin.IRouter){api.Register}})
	return errors.Join(front.Serve(ctx, listener, nil, handler), g.close())
}

// startGatewayOnly makes one in a process of its own, whose use of the processor is then the server's alone, and gives what tells that use.
func startGatewayOnly(b *testing.B, clients int) (*gatewayOnly, func() (spent, error)) {
	b.Helper()
	child := exec.Command(os.Args[0])
	child.Dir, child.Stderr, child.Env = b.TempDir(), os.Stderr, append(os.Environ(), idleVariable+"="+strconv.Itoa(clients))
	input, err := child.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	output, err := child.StdoutPipe()
	if err == nil {
		err = child.Start()
	}
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		input.Close()
		if err := child.Wait(); err != nil {
			b.Error(err)
		}
	})
	var g gatewayOnly
	answers := json.NewDecoder(output)
	if err := answers.Decode(&g); err != nil {
		b.Fatal(err)
	}
	return &g, func() (s spent, err error) {
		if _, err = input.Write([]byte{0}); err == nil {
			err = answers.Decode(&s)
		}
		return s, err
	}
}

// wait waits for an operation's outcome.
func (g *gatewayOnly) wait(ctx context.Context, id string) error {
	out, err := g.core.Wait(ctx, keys.Anonymous, id, time.Minute)
	if err == nil && out.Failure != nil {
		err = fmt.Errorf("%s: %s", id, out.Failure.Message)
	}
	return err
}

// inCore submits and waits inside the process.
func (g *gatewayOnly) inCore(ctx context.Context, run string, seq int) error {
	d := runs.Datum{Tokens: make([]int32, payloadTokens), Inputs: map[string]runs.Tensor{
		"target_tokens": {Ints: make([]int64, payloadTokens)}, "weights": {Floats: make([]float32, payloadTokens)},
	}}
	made, err := g.core.ForwardBackward(ctx, runs.ForwardBackward{Operation: runs.Operation{Owner: keys.Anonymous, RunID: run, Seq: int64(seq)}, Data: []runs.Datum{d}, Loss: "cross_entropy"})
	if err != nil {
		return err
	}
	return g.wait(ctx, made.RequestID)
}

// syncTime is the median time of an append of 1 KiB with fdatasync, on the disk that the benchmark uses.
func syncTime(b *testing.B) time.Duration {
	b.Helper()
	f, err := os.Create(filepath.Join(b.TempDir(), "sync"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	var times []time.Duration
	for range 101 {
		begun := time.Now()
		if _, err := f.Write(make([]byte, 1<<10)); err != nil {
			b.Fatal(err)
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			b.Fatal(err)
		}
		times = append(times, time.Since(begun))
	}
	slices.Sort(times)
	return times[len(times)/2]
}

// BenchmarkSubmitToCompleted measures operations of 1 KiB from submission to the completed future, each durable before it is answered and its result before it is given, with
// a backend that does nothing: inside the process, and over HTTP, where the server is a process of its own. cpu-µs/op and allocations/op are the server's, client-µs/op is the processor
// time of its clients; p50-sync-ms is the median latency less the disk's own sync.
func BenchmarkSubmitToCompleted(b *testing.B) {
	for _, clients := range []int{1, 64} {
		b.Run(fmt.Sprintf("core/clients=%d", clients), func(b *testing.B) {
			g, err := openGatewayOnly(b.Context(), b.TempDir(), clients)
			if err != nil {
				b.Fatal(err)
			}
			defer func() {
				if err := g.close(); err != nil {
					b.Error(err)
				}
			}()
			submitToCompleted(b, spentHere, func() ([]time.Duration, error) { return g.driveCore(b.Context(), b.N) })
		})
	}
	for _, clients := range []int{1, 64} {
		b.Run(fmt.Sprintf("http/clients=%d", clients), func(b *testing.B) {
			g, spentThere := startGatewayOnly(b, clients)
			connections := make([]*connection, clients)
			for i, run := range g.Runs {
				var err error
				if connections[i], err = g.connect(run); err != nil {
					b.Fatal(err)
				}
				defer connections[i].close()
			}
			before, err := spentHere()
			if err != nil {
				b.Fatal(err)
			}
			submitToCompleted(b, spentThere, func() ([]time.Duration, error) { return drive(connections, b.N) })
			after, err := spentHere()
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64((after.Processor-before.Processor).Nanoseconds())/1000/float64(b.N), "client-µs/op")
		})
	}
}

// share is how many of all operations the i-th of some clients does.
func share(operations, clients, i int) int { return (operations + clients - 1 - i) / clients }

// driveCore has every client do its share of operations, numbered from 1, one after the other, and gives what each took.
func (g *gatewayOnly) driveCore(ctx context.Context, operations int) ([]time.Duration, error) {
	latencies := make([][]time.Duration, len(g.Runs))
	var work errgroup.Group
	for i, run := range g.Runs {
		work.Go(func() error {
			for seq := range share(operations, len(g.Runs), i) {
				begun := time.Now()
				if err := g.inCore(ctx, run, seq+1); err != nil {
					return err
				}
				latencies[i] = append(latencies[i], time.Since(begun))
			}
			return nil
		})
	}
	err := work.Wait()
	return slices.Concat(latencies...), err
}

// submitToCompleted measures what drive does, which gives how long each operation took.
func submitToCompleted(b *testing.B, used func() (spent, error), drive func() ([]time.Duration, error)) {
	disk := syncTime(b)
	before, err := used()
	if err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	all, err := drive()
	if err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	after, err := used()
	if err != nil {
		b.Fatal(err)
	}
	slices.Sort(all)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
	b.ReportMetric(float64((after.Processor-before.Processor).Nanoseconds())/1000/float64(b.N), "cpu-µs/op")
	b.ReportMetric(float64(after.Allocations-before.Allocations)/float64(b.N), "allocations/op")
	b.ReportMetric(float64((all[len(all)/2]-disk).Microseconds())/1000, "p50-sync-ms")
	b.ReportMetric(float64(disk.Microseconds())/1000, "sync-ms")
}
