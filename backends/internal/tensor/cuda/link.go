package cuda

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/cudart"
)

// Link implements tensor.Linker by NCCL.
func (d *device) Link(devices []tensor.Device, o tensor.LinkOptions) (_ []tensor.Link, err error) {
	raw := make([]*cudart.Device, len(devices))
	for i, other := range devices {
		v, ok := other.(*device)
		if !ok {
			return nil, fmt.Errorf("cuda: NCCL has no part in a %T", other)
		}
		raw[i] = v.v
	}
	library, err := cudart.OpenNCCL(cudart.Options{Directories: d.libraries})
	if err != nil {
		return nil, fmt.Errorf("cuda: NCCL: %w", err)
	}
	if err := setDirectAccess(raw, o); err != nil {
		return nil, errors.Join(err, library.Close())
	}
	ends, err := library.Connect(raw)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cuda: NCCL: %w", err), library.Close())
	}
	shared := &linkLibrary{nccl: library, ends: len(ends)}
	links := make([]tensor.Link, len(ends))
	for i, c := range ends {
		links[i] = &link{device: devices[i].(*device), communicator: c, library: shared}
	}
	return links, nil
}

// peerVariable is how NCCL is told.
const peerVariable = "NCCL_P2P_DISABLE"

var sayOnce sync.Once

// setDirectAccess has NCCL go through the host's memory on Blackwell, where direct access is known to fail, unless the configuration or NCCL's own variable says otherwise.
func setDirectAccess(devices []*cudart.Device, o tensor.LinkOptions) error {
	if o.DirectAccess != nil {
		value := "1"
		if *o.DirectAccess {
			value = "0"
		}
		return os.Setenv(peerVariable, value)
	}
	if _, given := os.LookupEnv(peerVariable); given {
		return nil
	}
	for _, v := range devices {
		if strings.Contains(v.Name(), "B200") {
			sayOnce.Do(func() {
				slog.Warn("peer-to-peer access is turned off in NCCL, which fails with it on this GPU; backend.nccl_peer_to_peer sets it", "device", v.Name())
			})
			return os.Setenv(peerVariable, "1")
		}
	}
	return nil
}

// linkLibrary unloads NCCL with the last end.
type linkLibrary struct {
	mu   sync.Mutex
	nccl *cudart.NCCL
	ends int
}

func (l *linkLibrary) release() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ends--; l.ends > 0 {
		return nil
	}
	return l.nccl.Close()
}

// link is the operations under package checked.
type link struct {
	device       *device
	communicator *cudart.Communicator
	library      *linkLibrary
}

func (l *link) Ready() error {
	return l.device.failed("start what was recorded", l.communicator.Ready())
}

func (l *link) Hold() (release func()) { return l.communicator.Hold() }

func (l *link) AllGather(dst, src tensor.Tensor) error {
	return l.device.failed("all-gather", l.communicator.AllGather(view(dst).At, view(src).At, src.Rows*src.Cols))
}

func (l *link) AllToAll(dst, src tensor.Tensor) error {
	return l.device.failed("all-to-all", l.communicator.AllToAll(view(dst).At, view(src).At, src.Rows*src.Cols/l.communicator.Size()))
}

func (l *link) Broadcast(t tensor.Tensor, root int) error {
	return l.device.failed("broadcast", l.communicator.Broadcast(view(t).At, t.Rows*t.Cols, root))
}

func (l *link) Send(t tensor.Tensor, to int) error {
	return l.device.failed("send", l.communicator.Send(view(t).At, t.Rows*t.Cols, to))
}

func (l *link) Recv(t tensor.Tensor, from int) error {
	return l.device.failed("receive", l.communicator.Receive(view(t).At, t.Rows*t.Cols, from))
}

func (l *link) Abort() error { return l.end(l.communicator.Abort) }

func (l *link) Close() error { return l.end(l.communicator.Close) }

func (l *link) end(f func() error) error {
	return errors.Join(l.device.failed("close the link", f()), l.library.release())
}
