package cmd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/attach"
	"github.com/tinsmith/tinsmith/gateway/internal/config"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// remoteLeases are those under which this start of the server uses backends on other machines, once it is its turn; nil where no model has one.
func remoteLeases(cfg config.Config) *attach.Leases {
	if !slices.ContainsFunc(cfg.Models, func(m config.Model) bool {
		return slices.ContainsFunc(m.Members(), func(b config.Backend) bool { return b.Remote != nil })
	}) {
		return nil
	}
	name, err := os.Hostname()
	if err != nil {
		name = "unnamed"
	}
	return attach.LaterLeases(name)
}

// beginLeases numbers the leases, which may be taken from then on.
func beginLeases(ctx context.Context, leases *attach.Leases, records store.Store) error {
	if leases == nil {
		return nil
	}
	epoch, err := attach.Epoch(ctx, records, time.Now())
	if err == nil {
		leases.Begin(epoch)
	}
	return err
}

// checkRemote looks for what can be known of a backend on another machine without asking it.
func checkRemote(r *config.Remote) error {
	if !r.TLS.Files().Used() {
		return nil
	}
	host, _, err := net.SplitHostPort(r.Address)
	if err != nil {
		return fmt.Errorf("backend.address: %w", err)
	}
	if _, err := r.TLS.Files().Client(host); err != nil {
		return fmt.Errorf("backend.tls: %w", err)
	}
	return nil
}

// errElsewhere says why a command that starts a model's backend cannot.
var errElsewhere = errors.New("its backend runs on another machine (backend.address): run the command there, with a configuration that has the model's directory and no address")
