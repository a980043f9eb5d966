// Package attach is the supervisor's way to a backend on another machine: in place of a start of a program it takes the lease of one that runs there. It knows connections, leases and the gateway's own files of a model; processes,
// restarts and what is computed are not its business.
package attach

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/supervisor"
	"github.com/tinsmith/tinsmith/plugins"
)

// attachTimeout bounds one try: a backend may take a minute to be rid of what its last gateway left.
const attachTimeout = 2 * time.Minute

// modelFiles are those of a model directory that say what its tokens are and which model it is. Where both machines have one it must be the same.
var modelFiles = []string{"config.json", "tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt"}

// Leases gives the numbers of this gateway's leases: each above all before it, and all above those of gateways with a lower epoch. Its methods may be called concurrently.
type Leases struct {
	Gateway string        // who takes them, for messages
	epoch   uint32        // once begun is closed
	begun   chan struct{} // closed by Begin
	taken   atomic.Uint32
}

// NewLeases makes the numbers of an epoch, which no other gateway of the same backends has, nor this one had before.
func NewLeases(gateway string, epoch uint32) *Leases {
	l := LaterLeases(gateway)
	l.Begin(epoch)
	return l
}

// LaterLeases are those of a gateway that waits for its turn: no lease is taken before Begin.
func LaterLeases(gateway string) *Leases {
	return &Leases{Gateway: gateway, begun: make(chan struct{})}
}

// Begin begins the epoch of LaterLeases. It is called once.
func (l *Leases) Begin(epoch uint32) {
	l.epoch = epoch
	close(l.begun)
}

// next is the number of the next lease; it waits for Begin.
func (l *Leases) next(ctx context.Context) (uint64, error) {
	select {
	case <-l.begun:
		return uint64(l.epoch)<<32 | uint64(l.taken.Add(1)), nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// Config says which backend to attach to.
type Config struct {
	Address  string
	TLS      plugins.TLSFiles
	Plugin   string // what it must be; "": whatever it is
	Model    string // directory on its machine; "": the only one that it may load
	ModelDir string // the gateway's own directory of the model
	Leases   *Leases
}

// To gives what a supervisor attaches with.
func To(c Config) func(context.Context) (supervisor.Process, error) {
	return func(ctx context.Context) (supervisor.Process, error) {
		number, err := c.Leases.next(ctx)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, attachTimeout)
		defer cancel()
		sums, err := sums(c.ModelDir)
		if err != nil {
			return nil, err
		}
		a, err := plugins.Attach(ctx, plugins.AttachRequest{
			Address: c.Address, TLS: c.TLS, Gateway: c.Leases.Gateway, Number: number, Plugin: c.Plugin, Model: c.Model, ModelFiles: sums,
		})
		if err != nil {
			return nil, err
		}
		return &process{Attachment: a}, nil
	}
}

// sums are the hashes of the gateway's files of a model.
func sums(dir string) (map[string][]byte, error) {
	out := map[string][]byte{}
	for _, name := range modelFiles {
		sum, err := plugins.ModelFileHash(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("the model's files: %w", err)
		}
		out[name] = sum
	}
	return out, nil
}

// process is an attachment as a supervisor sees it.
type process struct {
	*plugins.Attachment
	killed  atomic.Bool
	crashed sync.Once
	outside bool
}

// Kill implements supervisor.Process. The backend makes everything new then, or ends its process if it cannot.
func (p *process) Kill(reason string) {
	if p.Reason() == "" {
		p.killed.Store(true)
	}
	p.Lose(reason)
}

// End implements supervisor.Process. There is nothing to wait for.
func (p *process) End(time.Duration) { p.Close() }

// Ending implements supervisor.Process.
func (p *process) Ending() string { return p.Reason() }

// Explain implements supervisor.Process: what the backend wrote is in the log of its machine.
func (p *process) Explain() string { return p.Reason() }

// Outside implements supervisor.Process. The backend is asked for once whether it is still there: if so, or if nobody knows, it was the connection. It takes some seconds at most.
func (p *process) Outside() bool {
	p.crashed.Do(func() { p.outside = !p.killed.Load() && !p.Crashed(context.Background()) })
	return p.outside
}
