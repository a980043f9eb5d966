package ordeal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/tinsmith/tinsmith/gateway/internal/keys"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	front "github.com/tinsmith/tinsmith/gateway/internal/server"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/gateway/internal/tinker"
	"github.com/tinsmith/tinsmith/gateway/internal/tinker/wire/tinkerpb"
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
	core  *runs.Core
	close func() error
	URL   string
	Runs  []string
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

// idleGateway is the main function of a process that is such a gateway in its folder and nothing else. It serves until its standard input ends.
func idleGateway(clients int) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
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
	g.URL = "http://" + listener.Addr().String()
	if err := json.NewEncoder(os.Stdout).Encode(g); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // however it ends, nobody is there any more
		cancel()
	}()
	handler := front.New(front.Options{Health: func() front.Health { return front.Health{Status: "ok"} }, Metrics: http.NotFoundHandler(), Routes: []func(gin.IRouter){api.Register}})
	return errors.Join(front.Serve(ctx, listener, handler), g.close())
}

// startGatewayOnly makes one in a process of its own, whose processor time is then the server's alone, and gives what tells that time.
func startGatewayOnly(b *testing.B, clients int) (*gatewayOnly, func() time.Duration) {
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
	if err := json.NewDecoder(output).Decode(&g); err != nil {
		b.Fatal(err)
	}
	return &g, func() time.Duration {
		m, err := measure(child.Process.Pid)
		if err != nil {
			b.Fatal(err)
		}
		return m.cpu
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

// overHTTP submits and polls as a client does.
func (g *gatewayOnly) overHTTP(client *http.Client, run string, seq int) error {
	tensor := func(size int, kind tinkerpb.DType) *tinkerpb.Tensor {
		return &tinkerpb.Tensor{Encoding: &tinkerpb.Tensor_Dense{Dense: make([]byte, size*payloadTokens)}, Dtype: kind, Shape: []int64{payloadTokens}}
	}
	body, err := proto.Marshal(&tinkerpb.ForwardBackwardRequest{ModelId: run, SeqId: int32(seq), LossFn: "cross_entropy", Data: []*tinkerpb.Datum{{
		ModelInput:   []*tinkerpb.Chunk{{Chunk: &tinkerpb.Chunk_EncodedText{EncodedText: &tinkerpb.EncodedTextChunk{Tokens: make([]byte, 4*payloadTokens)}}}},
		LossFnInputs: map[string]*tinkerpb.Tensor{"target_tokens": tensor(8, tinkerpb.DType_DTYPE_INT64), "weights": tensor(4, tinkerpb.DType_DTYPE_FLOAT32)},
	}}})
	if err != nil {
		return err
	}
	var made struct {
		RequestID string `json:"request_id"`
	}
	answer, err := g.ask(client, "/forward_backward", "application/x-protobuf", body)
	if err == nil {
		err = json.Unmarshal(answer, &made)
	}
	if err != nil {
		return err
	}
	_, err = g.ask(client, "/retrieve_future", "application/json", fmt.Appendf(nil, `{"request_id":%q}`, made.RequestID))
	return err
}

func (g *gatewayOnly) ask(client *http.Client, path, contentType string, body []byte) ([]byte, error) {
	answer, err := client.Post(g.URL+"/api/v1"+path, contentType, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %d %.300s", path, answer.StatusCode, b)
	}
	return b, err
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

// processorTime is what this process has used.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkSubmitToCompleted measures operations of 1 KiB from submission to the completed future, each durable before it is answered and its result before it is given, with
// a backend that does nothing: inside the process, and over HTTP, where the server is a process of its own and cpu-µs/op is that one's. p50-sync-ms is the median latency less the disk's own sync.
func BenchmarkSubmitToCompleted(b *testing.B) {
	for _, way := range []string{"core", "http"} {
		for _, clients := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/clients=%d", way, clients), func(b *testing.B) {
				var g *gatewayOnly
				serverTime := func() time.Duration { return processorTime(b) }
				if way == "core" {
					var err error
					if g, err = openGatewayOnly(b.Context(), b.TempDir(), clients); err != nil {
						b.Fatal(err)
					}
					defer func() {
						if err := g.close(); err != nil {
							b.Error(err)
						}
					}()
				} else {
					g, serverTime = startGatewayOnly(b, clients)
				}
				disk := syncTime(b)
				client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
				defer client.CloseIdleConnections()
				latencies := make([][]time.Duration, clients)
				errs := make(chan error, clients)
				work := func(i, n int) error {
					for seq := range n {
						begun := time.Now()
						var err error
						if way == "core" {
							err = g.inCore(b.Context(), g.Runs[i], seq+1)
						} else {
							err = g.overHTTP(client, g.Runs[i], seq+1)
						}
						if err != nil {
							return err
						}
						latencies[i] = append(latencies[i], time.Since(begun))
					}
					return nil
				}
				b.ReportAllocs()
				b.ResetTimer()
				used := serverTime()
				for i := range clients {
					go func() { errs <- work(i, (b.N+clients-1-i)/clients) }()
				}
				for range clients {
					if err := <-errs; err != nil {
						b.Fatal(err)
					}
				}
				used = serverTime() - used
				b.StopTimer()
				all := slices.Concat(latencies...)
				slices.Sort(all)
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
				b.ReportMetric(float64(used.Microseconds())/float64(b.N), "cpu-µs/op")
				b.ReportMetric(float64((all[len(all)/2]-disk).Microseconds())/1000, "p50-sync-ms")
				b.ReportMetric(float64(disk.Microseconds())/1000, "sync-ms")
			})
		}
	}
}
